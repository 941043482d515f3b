// Statements that need nothing around them.
void run() {
  // the block
}
