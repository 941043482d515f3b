// JSON requests and answers, and errors as OpenAI's clients read them.
#pragma once

#include <httplib.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "connection.h"
#include "lockstep/parallel/serving/serving_error.h"

namespace example {

using nlohmann::json;

// What a request ends in that has no answer.
struct HttpError : std::exception {
  HttpError(int code_of_http, std::string what, std::string field = {}, std::string name = {})
      : status(code_of_http), message(std::move(what)), param(std::move(field)), code(std::move(name)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string message, param, code;
};

// Bytes that are no UTF-8 become U+FFFD: a model of characters may write any.
inline std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

inline const char* reason_of(int status) {
  switch (status) {
    case 400:
      return "bad request";
    case 404:
      return "no such page; / has a page to try, docs/serving.md lists the others";
    case 413:
      return "the request is too large";
    case 414:
      return "the address is too long";
    case 416:
      return "ranges are not supported";
    default:
      return "the request failed";
  }
}

inline json error_json(const HttpError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  const auto text = [](const std::string& value) { return value.empty() ? json() : json(value); };
  return {{"error",
           {{"message", error.message}, {"type", type}, {"param", text(error.param)}, {"code", text(error.code)}}}};
}

inline void reply(httplib::Response& response, const json& body, int status = 200) {
  response.status = status;
  response.set_content(to_text(body), "application/json");
}
inline void reply(httplib::Response& response, const HttpError& error) {
  reply(response, error_json(error), error.status);
  if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "1");
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  if (Connection::current() && Connection::current()->must_close) response.set_header("Connection", "close");
}

// As an HttpError; `error` is not null.
inline HttpError http_error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& http) {
    return http;
  } catch (const lockstep::Refused& refused) {
    return {429, refused.what(), "", "queue_full"};
  } catch (const lockstep::Cancelled&) {
    return {503, "the server is stopping", "", "stopping"};
  } catch (const lockstep::TimeoutError&) {
    return {504, "the request took longer than the server's --request-seconds", "", "timeout"};
  } catch (const lockstep::InvalidArgument& wrong) {
    return {400, wrong.what()};
  } catch (const std::exception& other) {
    return {500, other.what()};
  } catch (...) {
    return {500, "unknown error"};
  }
}

// The object in a request's body. Throws HttpError. Browsers send this content type to other sites' servers only when
// these allow it, which this one does not.
inline json read_json(const httplib::Request& request, const httplib::ContentReader& read, std::size_t most) {
  bool& must_close = Connection::current()->must_close;
  must_close = true;  // until the body has been read
  if (request.get_header_value("Content-Type").rfind("application/json", 0) != 0)
    throw HttpError(415, "expected the header Content-Type: application/json");
  std::string body;
  const bool complete = read([&](const char* data, std::size_t size) {
    if (body.size() + size > most) return false;
    body.append(data, size);
    return true;
  });
  if (!complete) {
    if (body.size() + 4096 >= most)
      throw HttpError(413, "expected a body of at most " + std::to_string(most) + " bytes, got a larger one");
    throw HttpError(400, "the body is not complete");
  }
  must_close = false;
  const auto not_too_deep = [](int depth, json::parse_event_t, const json&) {  // each level takes a hundred bytes
    if (depth > 32) throw HttpError(400, "the body has lists within lists beyond 32 levels");
    return true;
  };
  json value = json::parse(body, not_too_deep, false);
  if (value.is_discarded()) throw HttpError(400, "the body is no JSON");
  if (!value.is_object()) throw HttpError(400, "expected a JSON object as body");
  return value;
}

// The fields of a request. What is null counts as absent. Throw HttpError.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  double number(const char* name, double otherwise, double least, double most) const {
    const json* value = find(name);
    if (!value) return otherwise;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= least && number <= most))
      wrong(name, "a number from " + json(least).dump() + " to " + json(most).dump(), *value);
    return number;
  }
  std::int64_t integer(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
    const json* value = find(name);
    if (!value) return otherwise;
    const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                                                  : value->is_number_integer();
    if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most)
      wrong(name, "a whole number from " + std::to_string(least) + " to " + std::to_string(most), *value);
    return value->get<std::int64_t>();
  }
  bool flag(const char* name) const {
    const json* value = find(name);
    if (value && !value->is_boolean()) wrong(name, "true or false", *value);
    return value && value->get<bool>();
  }
  // Fields that are known, but for which there is nothing behind.
  void refuse(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const json* value = find(name);
      if (!value || *value == false || *value == 0 || (value->is_structured() && value->empty())) continue;
      throw HttpError(400, std::string(name) + " is not supported", name, "unsupported_parameter");
    }
  }
  [[noreturn]] static void wrong(const std::string& name, const std::string& wanted, const json& got) {
    std::string text = to_text(got);
    if (text.size() > 60) text = text.substr(0, 40) + "...";
    throw HttpError(400, name + ": expected " + wanted + ", got " + text, name, "invalid_value");
  }

 private:
  const json& object_;
};

}  // namespace example
