"""Sets that sharded ranks write are read by another program, and theirs by sharded ranks, bit for bit.

usage: check.py <lockstep-run> <lockstep-sharded-sets>

The other program is sets.py, which needs no package; scripts/compare_sharded does the same with PyTorch.
"""
import pathlib
import sys
import tempfile
import unittest

import sets

LAUNCHER, PROGRAM = sys.argv[1:3]


class ShardedSets(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_written_here_and_read_elsewhere_and_back(self):
        for ranks, readers in ((2, 4), (4, 2)):
            with self.subTest(ranks=ranks):
                folder = self.folder / str(ranks)
                folder.mkdir()
                printed = sets.run(LAUNCHER, PROGRAM, ranks, "write", folder)
                model, optimizer = sets.of(printed, "model"), sets.of(printed, "optimizer")
                self.assertEqual({row[0] for row in model.values()}, {"F32", "BF16", "F16", "I64"})
                self.assertEqual(model["norm.num_batches_tracked"][:2], ("I64", ()))
                self.assertIn("state.blocks.1.up.weight.exp_avg", optimizer)
                self.assertEqual(len(list((folder / "set").glob("model-*"))), ranks)
                written = sets.read_set(folder / "set", "model")
                self.assertEqual(sets.differences(model, sets.table_of(written)), [])
                self.assertEqual(sets.differences(optimizer, sets.table_of(sets.read_set(folder / "set", "optimizer"))), [])
                whole = sets.read_file(folder / "model.safetensors")
                self.assertEqual(sets.differences(model, sets.table_of(whole)), [])

                # And the other way, with other elements: those that were there, the other way round.
                other = {name: (dtype, shape, b"".join(reversed([data[i:i + sets.SIZES[dtype]]
                                                                 for i in range(0, len(data), sets.SIZES[dtype])])))
                         for name, (dtype, shape, data) in written.items()}
                theirs = folder / "theirs"
                theirs.mkdir()
                sets.write_set(theirs, other, files=3)
                for path in (theirs, theirs / sets.INDEX.format("model")):
                    read = sets.of(sets.run(LAUNCHER, PROGRAM, readers, "read", path), "model")
                    self.assertEqual(sets.differences(sets.table_of(other), read), [])

    def test_a_difference_would_be_seen(self):
        tensors = {"x": ("F32", (2,), b"\0" * 8)}
        changed = {"x": ("F32", (2,), b"\0" * 7 + b"\1")}
        self.assertEqual(len(sets.differences(sets.table_of(tensors), sets.table_of(changed))), 1)
        self.assertEqual(len(sets.differences(sets.table_of(tensors), {})), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
