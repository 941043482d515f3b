void run() {
  const PackedSequence packed = pack_sequence({randn({5, 16}), randn({3, 16}), randn({1, 16})});
  // the block
  if (r.output.lengths() != packed.lengths()) throw Error("the lengths have changed");
}
