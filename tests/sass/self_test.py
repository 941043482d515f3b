"""What tests/sass reads out of machine code, by recorded kernels of a known shape; and when the report is red."""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import facts  # noqa: E402
import flow  # noqa: E402
import listing  # noqa: E402
from support.jobs import clean_environment  # noqa: E402

SCRIPT = HERE.parents[1] / "scripts" / "sass_report"


def recorded():
    kernels = {}
    for path in sorted((HERE / "recorded").glob("*.sass")):
        kernels |= listing.disassembly(path.read_text())
    listing.resources((HERE / "recorded" / "resources.txt").read_text(), kernels)
    return kernels


KERNELS = recorded()
ROWS = {name: facts.measure(kernel) for name, kernel in KERNELS.items()}


class Facts(unittest.TestCase):
    def expect(self, name, **expected):
        self.assertEqual({key: ROWS[name][key] for key in expected}, expected)

    def test_packs_that_are_loaded_before_any_is_used_are_under_way_together(self):
        self.expect("packs", loads={16: 4}, stores={16: 4}, loads_in_flight=4, bytes_in_flight=64,
                    in_flight=8 * 256 * 64, loops=1)

    def test_loads_whose_address_is_loaded_go_one_by_one(self):
        self.expect("chase", loads={4: 1}, stores={}, loads_in_flight=1, bytes_in_flight=4, loops=1)

    def test_a_division_routine_counts_where_a_loop_calls_it(self):
        self.expect("divides", divisions=1, inline_divisions=1, calls=0)
        self.expect("divides_before", divisions=0, inline_divisions=0, calls=0, loads={2: 1}, stores={2: 1})
        called = [one.operands for one in KERNELS["divides_before"].instructions if one.name == "CALL"]
        self.assertRegex(called[0], facts.DIVISIONS)

    def test_registers_on_the_stack_are_spills(self):
        self.expect("spills", spills=29, stack=72, registers=32)
        self.expect("packs", spills=0, stack=0, registers=26)

    def test_block_sizes_are_those_of_launch_bounds(self):
        self.expect("chase", threads=128, threads_from="__launch_bounds__")
        self.expect("divides", threads=1024, threads_from="no __launch_bounds__")

    def test_shared_memory_is_without_the_system_s(self):
        self.expect("shares", shared=16384)
        self.assertEqual(facts.measure(KERNELS["shares"], 1000)["shared"], 17384)
        self.expect("packs", shared=0)

    def test_tensor_core_and_fma_instructions_count_and_constants_do_not(self):
        self.expect("tensor", tensor=2, fma=0, loops=0)
        self.expect("multiplies", tensor=0, fma=sum(
            line.count("FFMA") for line in (HERE / "recorded" / "multiplies.sass").read_text().splitlines()))
        self.assertGreater(ROWS["multiplies"]["fma"], 0)
        self.expect("divides", fma=0)  # its HFMA2 puts a zero into a register

    def test_occupancy_is_what_the_calculator_of_the_toolkit_says(self):
        blocks = facts.blocks_per_multiprocessor
        self.assertEqual([blocks(registers, 256, 0) for registers in (32, 33, 40, 48, 64, 96, 255)], [8, 6, 6, 5, 4, 2, 1])
        self.assertEqual([blocks(32, 256, shared) for shared in (27 * 1024, 28 * 1024, 100 * 1024, 227 * 1024, 228 * 1024)],
                         [8, 7, 2, 1, 0])
        self.assertEqual([blocks(16, threads, 0) for threads in (32, 96, 1024)], [32, 21, 2])
        self.assertEqual(blocks(40, 96, 0), 16)  # registers go to warps in fours

    def test_ways_through_a_loop_end_at_its_head(self):
        kernel = listing.disassembly("""
        .section .text.k,"ax",@progbits
.L_x_1:
    /*0000*/  IADD3 R8, R8, 0x1, RZ ;
    /*0010*/  @P0 BRA `(.L_x_2) ;
    /*0020*/  LDG.E.64 R4, desc[UR4][R2.64] ;
    /*0030*/  @P1 BRA `(.L_x_1) ;
    /*0040*/  EXIT ;
.L_x_2:
    /*0050*/  LDG.E.64 R6, desc[UR4][R2.64] ;
    /*0060*/  LDG.E.U8 R10, desc[UR4][R2.64+0x8] ;
    /*0070*/  @P1 BRA `(.L_x_1) ;
    /*0080*/  EXIT ;
""")["k"]
        loops = flow.Flow(kernel).loops
        self.assertEqual(len(loops), 1)
        self.assertEqual(flow.Flow(kernel).under_way(0, loops[0]), (1, 8))

    def test_who_waits_for_a_load_waits_for_those_before_it(self):
        kernel = listing.disassembly("""
        .section .text.k,"ax",@progbits
.L_x_1:
    /*0000*/  LDG.E.64 R4, desc[UR4][R2.64] ;
    /*0010*/  LDG.E.64 R8, desc[UR4][R2.64+0x10] ;
    /*0020*/  LDG.E.64 R10, desc[UR4][R2.64+0x18] ;
    /*0030*/  FADD R12, R9, R9 ;
    /*0040*/  LDG.E.64 R14, desc[UR4][R2.64+0x20] ;
    /*0050*/  LDG.E.64 R16, desc[UR4][R2.64+0x28] ;
    /*0060*/  LDG.E.64 R18, desc[UR4][R2.64+0x30] ;
    /*0070*/  DADD R20, R14, R14 ;
    /*0080*/  LDG.E.64 R22, desc[UR4][R2.64+0x38] ;
    /*0090*/  @P1 BRA `(.L_x_1) ;
    /*00a0*/  EXIT ;
""")["k"]
        row = facts.measure(kernel)
        # Three; after the first two came, the third with three more; after two of these, the others with the last one.
        self.assertEqual((row["loads_in_flight"], row["bytes_in_flight"]), (4, 32))

    def test_calls_of_other_routines_are_no_divisions_and_warp_groups_have_tensor_cores(self):
        kernel = listing.disassembly("""
        .section .text.k,"ax",@progbits
.L_x_1:
    /*0000*/  CALL.REL.NOINC `($__internal_1_$__cuda_sm20_sqrt_rn_f32_slowpath) ;
    /*0010*/  HGMMA.64x8x16.F32 R4, gdesc[UR4], RZ, !UPT ;
    /*0020*/  @P1 BRA `(.L_x_1) ;
    /*0030*/  EXIT ;
""")["k"]
        row = facts.measure(kernel)
        self.assertEqual((row["calls"], row["divisions"], row["tensor"]), (1, 0, 1))

    def test_code_that_stands_behind_the_loop_and_jumps_back_is_part_of_it(self):
        kernel = listing.disassembly("""
        .section .text.k,"ax",@progbits
.L_x_1:
    /*0000*/  LDG.E R4, desc[UR4][R2.64] ;
    /*0010*/  BSSY B0, `(.L_x_3) ;
    /*0020*/  @P0 BRA `(.L_x_2) ;
    /*0030*/  BSYNC B0 ;
.L_x_3:
    /*0040*/  STG.E desc[UR4][R8.64], R4 ;
    /*0050*/  @P1 BRA `(.L_x_1) ;
    /*0060*/  EXIT ;
.L_x_2:
    /*0070*/  CALL.REL.NOINC `($__internal_0_$__cuda_sm20_rem_u64) ;
    /*0080*/  BSYNC B0 ;
    /*0090*/  EXIT ;
""")["k"]
        row = facts.measure(kernel)
        self.assertEqual((row["loops"], row["divisions"], row["stores"]), (1, 1, {4: 1}))


class Names(unittest.TestCase):
    def test_names_are_short(self):
        for long, short in {
                "void lockstep::kernels::cuda::(anonymous namespace)::softmax_kernel<lockstep::BFloat16>"
                "(lockstep::BFloat16 const*, lockstep::BFloat16*, lockstep::kernels::cuda::Lines, bool)": "softmax_kernel<bf16>",
                "void lockstep::kernels::cuda::fold_kernel<lockstep::kernels::cuda::(anonymous namespace)::Reduce<float, "
                "(lockstep::kernels::cuda::(anonymous namespace)::Join)3> >(float)": "fold_kernel<Reduce<f32, 3>>",
                "void cub::CUB_300001_SM_900::detail::radix_sort::DeviceRadixSortExclusiveSumKernel<cub::CUB_300001_SM_900::"
                "detail::radix::policy_hub<unsigned long, cub::CUB_300001_SM_900::NullType, unsigned long long>::Policy1000, "
                "unsigned long long>(unsigned long long*)": "cub::DeviceRadixSortExclusiveSumKernel",
                "lockstep::kernels::cuda::scan_kernel(long*, long)": "scan_kernel"}.items():
            self.assertEqual(listing.short_name(long), short)


TABLE = {"classes": {"wide": {"loads": 16, "stores": 16, "in_flight": 32768, "types": "packs|chase|tensor"},
                     "tensor": {"tensor": True}, "other": {}},
         "kernels": [{"name": "^packs$|^chase$", "class": "wide"}, {"name": "^tensor$", "class": "tensor"},
                     {"name": "", "class": "other"}],
         "known": [{"fact": fact, "why": "as an example", "kernels": [kernel]} for kernel, fact in (
             ("chase", "loads"), ("chase", "stores"), ("chase", "in_flight"), ("divides", "divisions"),
             ("spills", "spills"))]}


class Judgement(unittest.TestCase):
    def red(self, table, whole=True, names=tuple(ROWS)):
        rows = {name: copy.deepcopy(ROWS[name]) for name in names}
        return facts.judge(rows, table, whole), rows

    def test_what_is_known_is_not_red(self):
        red, rows = self.red(TABLE)
        self.assertEqual(red, [])
        self.assertEqual(rows["chase"]["known"], ["loads", "stores", "in_flight"])

    def test_every_fact_that_is_not_known_is_red(self):
        for k, known in enumerate(TABLE["known"]):
            table = copy.deepcopy(TABLE)
            del table["known"][k]
            red, _ = self.red(table)
            self.assertEqual(len(red), 1, known)
            self.assertIn(known["kernels"][0], red[0])

    def test_a_known_failure_that_no_longer_fails_is_red(self):
        table = copy.deepcopy(TABLE)
        table["known"].append({"fact": "loads", "why": "it was so", "kernels": ["packs"]})
        self.assertIn("packs: loads no longer fails", self.red(table)[0][0])
        self.assertEqual(self.red(table, whole=False, names=["tensor"])[0], [])

    def test_a_kernel_without_a_class_is_red_and_so_is_an_entry_without_a_kernel(self):
        table = copy.deepcopy(TABLE)
        table["kernels"][-1]["name"] = "^(divides|divides_before|spills|multiplies)$"
        self.assertEqual(self.red(table)[0], ["shares: has no class"])
        table["kernels"][-1]["name"] = ""
        table["kernels"].insert(0, {"name": "^gone$", "class": "other"})
        table["known"].append({"fact": "loads", "why": "it was so", "kernels": ["gone"]})
        self.assertEqual(self.red(table)[0], ["gone: is a known failure, and no kernel", "^gone$: fits no kernel"])
        self.assertEqual(self.red(table, whole=False)[0], [])

    def test_a_tensor_kernel_without_tensor_cores_is_red(self):
        table = copy.deepcopy(TABLE)
        table["kernels"][1]["name"] = "^(tensor|multiplies)$"
        self.assertEqual(self.red(table)[0], ["multiplies: has no tensor-core instructions"])

    def test_a_block_that_does_not_fit_is_red(self):
        self.assertEqual(list(facts.failures({**ROWS["packs"], "blocks": 0}, {})), ["occupancy"])

    def test_an_entry_says_otherwise_than_its_class_and_types_leave_out(self):
        table = copy.deepcopy(TABLE)
        table["kernels"].insert(0, {"name": "^chase$", "class": "wide", "loads": 0, "stores": 0, "in_flight": 0})
        self.assertEqual(len(self.red(table)[0]), 3)  # of the known failures, none of which fails
        table = copy.deepcopy(TABLE)
        table["classes"]["wide"]["types"] = "packs"
        self.assertEqual(len(self.red(table)[0]), 3)


class Script(unittest.TestCase):
    def run_script(self, *arguments, **environment):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={**clean_environment(), **environment})

    def test_the_table_of_kernels_names_classes_that_there_are(self):
        table = json.loads((HERE / "kernels.json").read_text())
        for entry in table["kernels"]:
            self.assertIn(entry["class"], table["classes"])
        for known in table["known"]:
            self.assertTrue(known["why"])
            self.assertEqual(len(known["kernels"]), len(set(known["kernels"])))

    def test_without_tools_or_objects_it_says_what_is_missing_and_fetches_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("--tools", folder, "--build", folder)
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"--install|no CUDA objects in")
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
        self.assertEqual(self.run_script("--only", "(").returncode, 2)


if __name__ == "__main__":
    unittest.main()
