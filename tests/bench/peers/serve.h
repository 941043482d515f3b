// A program that scripts/compare_peers drives: one line of JSON in, one line out, so that programs measure by turns and
// stay warm between turns. `prepare` gives a work and a folder, `measure` the seconds that a sample lasts. The work's
// first program writes inputs and results into the folder, where the others read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace peers {

using Json = nlohmann::json;

// The program cannot do this work; the reason stands in the report.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One way to do the work: `repeat` does it so many times, `report` says what was found when it was prepared.
struct Way {
  std::function<void(std::int64_t times)> repeat;
  Json report = Json::object();
};
using Ways = std::map<std::string, Way>;  // by the name of the way
using Prepare = std::function<Ways(const Json& work, const std::string& folder)>;

inline double seconds_of(const Way& way, std::int64_t times) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  way.repeat(times);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// As many calls as take `least` seconds, found by doubling.
inline double seconds_per_call(const Way& way, double least) {
  for (std::int64_t times = 1;; times *= 2) {
    const double seconds = seconds_of(way, times);
    if (seconds < least / 2) continue;
    if (seconds >= least) return seconds / static_cast<double>(times);
    const auto more = static_cast<std::int64_t>(static_cast<double>(times) * least / seconds) + 1;
    return seconds_of(way, more) / static_cast<double>(more);
  }
}

// Answers until the input ends. `hello` is the first line: name and version.
inline int serve(const Json& hello, const Prepare& prepare) {
  std::cout << hello.dump() << std::endl;
  Ways ways;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const Json request = Json::parse(line);
      if (request.at("do") == "prepare") {
        ways.clear();
        ways = prepare(request.at("work"), request.at("folder"));
        for (const auto& [name, way] : ways) {
          seconds_of(way, 1);
          answer["ways"][name] = way.report;
        }
      } else {
        answer["seconds"] = seconds_per_call(ways.at(request.at("way")), request.at("least"));
      }
    } catch (const Unsupported& error) {
      answer = {{"unsupported", error.what()}};
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace peers
