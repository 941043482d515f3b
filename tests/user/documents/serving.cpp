void run() {
  // the block
}
