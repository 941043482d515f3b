// A sum in order has the bits of one addition after the other.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("a sum in order has the bits of additions, also where it is written over a term") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t count : {0, 1, 5, 2048, 2049, 10'007})
      for (const int terms : {1, 2, 3, 9, 64})
        for (const int over : {-1, 0, terms / 2, terms - 1}) {
          CAPTURE(dtype, count, terms, over);
          std::vector<TestTensor> in;
          for (int t = 0; t < terms; ++t) {
            in.emplace_back(dtype, Shape{count});
            const double reach = t % 3 == 1 ? 1e3 : 1;
            in.back().fill_random(static_cast<std::uint64_t>(t), -reach, reach);
          }
          TestTensor expected = in[0];
          for (int t = 1; t < terms; ++t)
            run(BinaryArgs{BinaryOp::add, expected.in(), in[static_cast<std::size_t>(t)].in(), expected.out()});
          TestTensor out(dtype, {count});
          TestTensor& to = over < 0 ? out : in[static_cast<std::size_t>(over)];
          OrderedSumArgs args{{}, to.out()};
          for (const TestTensor& term : in) args.terms.push_back(term.in());
          run(args);
          CHECK(to.bytes() == expected.bytes());
        }
}
