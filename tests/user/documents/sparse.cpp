struct Words;
void step(Words& net, SparseAdam& rows, AdamW& rest);

// the block

void step(Words& net, SparseAdam& rows, AdamW& rest) {
  mean(square(net(zeros({2, 3}, {.dtype = DType::i64})))).backward();
  rows.step();
  rest.step();
}

void run() {
  Words net;
  train(net);
}
