// What programs of benchmarks are made of: statistics, tables, filters.
#include <atomic>

#include "lockstep/parallel/bench/bench.h"
#include "lockstep/runtime/error.h"
#include "nlohmann/json.hpp"
#include "support/catch.h"

using namespace lockstep;
using bench::Format;
using bench::Samples;
using bench::Session;
using bench::Table;
using Catch::Matchers::Contains;

TEST_CASE("samples: the statistics that NumPy gives") {
  // numpy.percentile([3, 1, 4, 1, 5, 9, 2, 6], [0, 5, 50, 95, 99, 100]); std with ddof=1
  const Samples samples({3, 1, 4, 1, 5, 9, 2, 6});
  CHECK(samples.count() == 8);
  CHECK(samples.values()[5] == 9);
  CHECK(samples.min() == 1);
  CHECK(samples.percentile(5) == Approx(1));
  CHECK(samples.median() == Approx(3.5));
  CHECK(samples.percentile(95) == Approx(7.95));
  CHECK(samples.percentile(99) == Approx(8.79));
  CHECK(samples.max() == 9);
  CHECK(samples.mean() == Approx(3.875));
  CHECK(samples.stddev() == Approx(2.748376));
  CHECK(samples.spread() == Approx(6.95 / 3.5));
  CHECK(samples.times(10).median() == Approx(35));
  CHECK(samples.into(12).max() == Approx(12));
  CHECK(samples.into(12).median() == Approx(3.5));  // of 12/3 and 12/4
  const Samples one({7});
  CHECK(one.median() == 7);
  CHECK(one.percentile(95) == 7);
  CHECK(one.stddev() == 0);
  CHECK(Samples().median() == 0);
}

namespace {
Table example() {
  Table table("times", "times of \"x\"", {"what", "us", "fast", "memory"});
  table.add({"a, b", Samples({1, 2, 3}), true, Table::Cell::bytes(16 << 20)});
  table.add({"c\n", Samples({0.25}), false, 12.5});
  return table;
}
}  // namespace

TEST_CASE("tables: samples stand with their minimum, 95th percentile and spread") {
  const std::string text = example().text();
  CHECK_THAT(text, Contains("times of \"x\""));
  CHECK_THAT(text, Catch::Matchers::Matches(R"([\s\S]*what +us +min +p95 +spread +fast +memory[\s\S]*)"));
  CHECK_THAT(text, Contains("16 MiB") && Contains("yes") && Contains("2.9") && Contains("±45%"));
  Table matrix("m", "m", {"from", "to"}, 1, Table::Style::matrix);
  matrix.add({"a", Samples({1, 2, 3})});
  CHECK_THAT(matrix.text(), Contains("2 ±45%") && !Contains("p95"));
  CHECK_THROWS_WITH(matrix.add({"a"}), Contains("2 cells") && Contains("'m'") && Contains("got 1"));
}

TEST_CASE("JSON: numbers are numbers, and every sample is there") {
  Session session({.format = Format::json, .repetitions = 3});
  session.add(example());
  session.add(Table("empty", "empty", {"a"}));
  const auto json = nlohmann::json::parse(session.output("some-bench"));
  CHECK(json["context"]["program"] == "some-bench");
  CHECK(json["context"]["cores"].is_number_integer());
  CHECK(json["context"]["load"].is_number());
  CHECK(json["context"]["memory_bytes"].get<std::int64_t>() > 0);
  CHECK(json["context"]["repetitions"] == 3);
  CHECK(json["context"]["devices"].contains("cpu"));
  for (const char* name :
       {"date", "host", "processor", "lockstep", "commit", "build_type", "compiler", "libraries", "environment"})
    CHECK(json["context"].contains(name));
  CHECK_FALSE(json.contains("empty"));
  const auto& rows = json["times"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["what"] == "a, b");
  CHECK(rows[0]["us"]["median"] == 2);
  CHECK(rows[0]["us"]["p95"].get<double>() == Approx(2.9));
  CHECK(rows[0]["us"]["samples"] == nlohmann::json({1, 2, 3}));
  CHECK(rows[0]["fast"] == true);
  CHECK(rows[0]["memory"] == (16 << 20));
  CHECK(rows[1]["what"] == "c\n");
  CHECK(rows[1]["memory"] == 12.5);
}

TEST_CASE("CSV: a line for each figure") {
  Session session({.format = Format::csv});
  session.add(example());
  CHECK(session.output("x") ==
        "table,row,column,value,min,p05,p95,p99,max,mean,stddev,samples\n"
        "times,\"a, b\",us,2,1,1.1,2.9,2.98,3,2,1,3\n"
        "times,\"a, b\",fast,true,,,,,,,,\n"
        "times,\"a, b\",memory,16777216,,,,,,,,\n"
        "times,\"c\n\",us,0.25,0.25,0.25,0.25,0.25,0.25,0.25,0,1\n"
        "times,\"c\n\",fast,false,,,,,,,,\n"
        "times,\"c\n\",memory,12.5,,,,,,,,\n");
}

TEST_CASE("a filter chooses figures, a list measures none, a wrong filter is an error") {
  Session all({});
  all.begin("ops");
  CHECK(all.wants("small", "add"));
  Session some({.filter = "^ops/.*add|gelu$"});
  some.begin("ops");
  CHECK(some.wants("small", "add, 16 floats"));
  CHECK_FALSE(some.wants("small", "mul"));
  CHECK(some.wants("large", "gelu"));
  Session list({.list = true});
  list.begin("ops");
  CHECK_FALSE(list.wants("small", "add"));
  CHECK(list.output("x") == "ops/small/add\n");
  Session none({.filter = "nothing"});
  none.begin("ops");
  CHECK_FALSE(none.wants("small", "add"));
  CHECK_THROWS_WITH(none.output("x"), Contains("1 figures") && Contains("'nothing'"));
  CHECK_THROWS_WITH(Session({.filter = "("}), Contains("regular expression") && Contains("'('"));
  CHECK_THROWS_AS(Session({.min_seconds = -1}), InvalidArgument);
}

TEST_CASE("a body that takes no time is an error, not a wait for ever") {
  const Session session({.min_seconds = 1e-3});
  CHECK_THROWS_WITH(session.seconds_per_call([](std::int64_t) { return 0.0; }, 1),
                    Contains("[measure] expected a body that takes time") && Contains("does nothing"));
}

TEST_CASE("as many samples as asked for, each of at least the time asked for") {
  const Session session({.repetitions = 4, .min_seconds = 1e-3});
  std::int64_t calls = 0;
  const Samples samples = session.seconds_per_call(
      [&](std::int64_t count) {
        calls += count;
        return static_cast<double>(count) * 1e-5;  // a clock of the test's own
      },
      7);
  CHECK(samples.count() == 4);
  CHECK(samples.max() == Approx(1e-5));
  CHECK(calls >= 5 * 100);
  CHECK(calls <= 5 * 200 + 200);
  int bodies = 0;
  CHECK(Session({.repetitions = 2}).nanoseconds_per_call(10, [&] { ++bodies; }).count() == 2);
  CHECK(bodies == 30);  // one sample warms up
}

TEST_CASE("a suite refuses what makes no sense") {
  bench::Suite suite("x", "y");
  suite.add("a", [](bench::Run&) {});
  CHECK_THROWS_WITH(suite.add("a", [](bench::Run&) {}), Contains("'a' twice"));
  CHECK_THROWS_WITH(suite.add("b", nullptr), Contains("'b'") && Contains("empty"));
  char name[] = "x", all[] = "--repetitions=1";
  char* arguments[] = {name, all, nullptr};
  CHECK(suite.main(2, arguments) == 2);  // 'a' measures nothing
}
