// What errors say.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>

namespace support {

// The message of the E that `body` throws; what happened instead otherwise.
template <class E, class F>
std::string message_of(F&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type of error: ") + error.what();
  }
  return "no error";
}

// "" when `text` contains all parts, else what is missing.
inline std::string missing(const std::string& text, std::initializer_list<std::string> parts) {
  std::string absent;
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) absent += "'" + part + "' ";
  }
  return absent.empty() ? "" : absent + "in: " + text;
}

}  // namespace support
