// What an exception says.
#pragma once

#include <exception>
#include <string>

// The message of the E that `body` throws; a text that no message equals when it throws nothing or something else.
template <class E, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& other) {
    return std::string("(another exception) ") + other.what();
  }
  return "(no exception)";
}
