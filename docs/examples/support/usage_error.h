// What the examples throw when they cannot do what they are asked to.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace example {

// A command line or a file that cannot be worked with. The message is one sentence.
class UsageError : public std::exception {
 public:
  explicit UsageError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace example
