// Operations that move elements.
#include "work.h"

namespace peers {

namespace {

Call joined(const Arguments& make) {
  return make([a = make.x[0], b = make.x[1], dim = make.integer("dim")] { return cat({a, b}, dim); });
}
Call stacked(const Arguments& make) {
  return make([a = make.x[0], b = make.x[1], dim = make.integer("dim")] { return stack({a, b}, dim); });
}
Call narrowed(const Arguments& make) {
  return make([x = make.x[0], dim = make.integer("dim"), start = make.integer("start"),
               length = make.integer("length")] { return x.narrow(dim, start, length).contiguous(); });
}
Call sliced(const Arguments& make) {
  return make([x = make.x[0], dim = make.integer("dim"), step = make.integer("step", 1)] {
    return slice(x, dim, std::nullopt, std::nullopt, step).contiguous();
  });
}
Call permuted(const Arguments& make) {
  return make([x = make.x[0], dims = make.dims("dims")] { return x.permute(dims).contiguous(); });
}

}  // namespace

Operations shape_operations() {
  return {
      {"cat", joined},
      {"stack", stacked},
      {"narrow", narrowed},
      {"slice", sliced},
      {"permute", permuted},
      {"add_transposed",
       [](const Arguments& make) { return make([a = make.x[0], b = make.x[1]] { return a + b.transpose(0, 1); }); }},
      {"flip",
       [](const Arguments& make) { return make([x = make.x[0], dims = make.dims("dims")] { return flip(x, dims); }); }},
      {"roll",
       [](const Arguments& make) {
         return make([x = make.x[0], dim = make.integer("dim")] { return roll(x, 7, dim); });
       }},
      {"pad",
       [](const Arguments& make) { return make([x = make.x[0], dims = make.dims("dims")] { return pad(x, dims); }); }},
      {"repeat",
       [](const Arguments& make) {
         return make([x = make.x[0], times = make.dims("times")] { return repeat(x, times); });
       }},
      {"triu", [](const Arguments& make) { return make([x = make.x[0]] { return triu(x); }); }},
      {"index_select",
       [](const Arguments& make) {
         return make([x = make.x[0], at = make.x[1], dim = make.integer("dim")] { return index_select(x, dim, at); });
       }},
      {"gather",
       [](const Arguments& make) {
         return make([x = make.x[0], at = make.x[1], dim = make.integer("dim")] { return gather(x, dim, at); });
       }},
      {"scatter_add",
       [](const Arguments& make) {
         return make([x = make.x[0], at = make.x[1], source = make.x[2], dim = make.integer("dim")] {
           return scatter_add(x, dim, at, source);
         });
       }},
      {"index_add",
       [](const Arguments& make) {
         return make([x = make.x[0], at = make.x[1], source = make.x[2], dim = make.integer("dim")] {
           return index_add(x, dim, at, source);
         });
       }},
      {"one_hot",
       [](const Arguments& make) {
         return make([at = make.x[0], classes = make.integer("classes")] { return one_hot(at, classes); });
       }},
  };
}

}  // namespace peers
