// Run-time values.
#include "lockstep/tensor/value.h"

#include "lockstep/tensor/tree.h"
#include "support/messages.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::message_of;
using support::missing;

namespace {

// first, first + 1, …
Tensor numbers_from(std::int64_t count, double first = 1) { return arange(count).to(DType::f64) + first; }

}  // namespace

TEST_CASE("a value knows its type and gives its content") {
  CHECK(Value().is(Value::Type::nothing));
  CHECK(Value(true).as_bool());
  CHECK(Value(7).as_integer() == 7);
  CHECK(Value(std::size_t{7}).as_integer() == 7);
  CHECK(Value(1.5).as_number() == 1.5);
  CHECK(Value(7).as_number() == 7);
  CHECK(Value("text").as_string() == "text");
  CHECK(Value(std::string("text")).is(Value::Type::string));
  CHECK(values(Value(numbers_from(2)).as_tensor()) == Doubles{1, 2});
  CHECK(Value(Value::List{1, "a"}).as_list().size() == 2);
  CHECK(Value(Value::Map{{"a", 1}}).at("a").as_integer() == 1);
  Value changed = 1;
  changed = "text";
  changed.as_string() += "s";
  CHECK(changed.as_string() == "texts");
}

TEST_CASE("the wrong accessor names both types") {
  CHECK(missing(message_of<InvalidArgument>([] { Value(3).as_string(); }), {"string", "integer"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { Value(numbers_from(2)).as_list(); }), {"list", "tensor"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { Value().as_number(); }), {"number", "nothing"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { Value(1.5).as_integer(); }), {"integer", "number"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] {
                  Value(Value::Map{{"a", 1}, {"b", 2}}).at("c");
                }),
                {"'a', 'b'", "'c'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { Value(Value::List{1}).at(1); }), {"below 1", "got 1"}) == "");
  CHECK_THROWS_AS(Value(~std::uint64_t{0}), InvalidArgument);
}

TEST_CASE("its tensors are found in order") {
  Value value =
      Value::List{numbers_from(1, 4), 3, Value::Map{{"b", numbers_from(1, 6)}, {"a", numbers_from(1, 5)}}, Tensor()};
  Doubles found;
  for_each_tensor(value, [&](Tensor& x) {
    found.push_back(x.item<double>());
    x = x * 2;
  });
  CHECK(found == Doubles{4, 5, 6});
  found.clear();
  for_each_tensor(std::as_const(value), [&](const Tensor& x) { found.push_back(x.item<double>()); });
  CHECK(found == Doubles{8, 10, 12});
}
