#include <cstdio>

struct Net : Module<Net> {
  Linear body{3, 2}, head{2, 2};
  void members(Members& m) override { m("body", body), m("head", head); }
};

void run() {
  Net net;
  save_safetensors("backbone.safetensors", {{"body.weight", ones({2, 3})}, {"body.bias", ones({2})}});
  // the block
  if (report.missing.size() != 2) throw Error("expected the head to be missing");
}
