void run() {
  const Device device = accelerators()[0];
  // the block
}
