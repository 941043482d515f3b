// Which address is answered by what.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "completions.h"
#include "digits.h"
#include "http_server.h"
#include "page.h"

namespace example {

struct Services {
  std::unique_ptr<DigitsService> digits;  // null: not served
  std::unique_ptr<TextService> text;

  std::string metrics() const { return (digits ? digits->metrics() : "") + (text ? text->metrics() : ""); }
  void close() {
    if (digits) digits->close();
    if (text) text->close();
  }
};

// In a time that does not depend on where they differ.
inline bool same_secret(const std::string& secret, const std::string& given) {
  volatile unsigned different = secret.size() != given.size();
  for (std::size_t i = 0; i < secret.size(); ++i)
    different = different | static_cast<unsigned>(secret[i] ^ (i < given.size() ? given[i] : '\0'));
  return different == 0;
}

class Routes {
 public:
  // All outlive the server's threads.
  Routes(HttpServer& server, const Services& services, std::string token, std::size_t most_bytes)
      : server_(server), services_(services), token_(std::move(token)), most_bytes_(most_bytes) {
    server.set_pre_routing_handler([this](const auto& request, auto& response) { return before(request, response); });
    server.set_error_handler(
        httplib::Server::HandlerWithResponse([](const httplib::Request&, httplib::Response& response) {
          if (response.body.empty()) reply(response, HttpError(response.status, reason_of(response.status)));
          return httplib::Server::HandlerResponse::Handled;
        }));
    server.set_exception_handler([](const auto&, httplib::Response& response, const std::exception_ptr& error) {
      reply(response, http_error_of(error));
    });
    get("/", [](httplib::Response& response) {
      response.set_header("Content-Security-Policy",
                          "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
                          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
      response.set_content(kPage, sizeof kPage - 1, "text/html; charset=utf-8");
    });
    get("/health", [this](httplib::Response& response) {
      if (stopping_) throw HttpError(503, "the server is stopping", "", "stopping");
      reply(response, json{{"status", "ok"},
                           {"digits", services_.digits ? services_.digits->shape() : json()},
                           {"model", services_.text ? json(services_.text->backend().name) : json()}});
    });
    get("/metrics",
        [this](httplib::Response& response) { response.set_content(metrics(), "text/plain; version=0.0.4"); });
    get("/v1/models", [this](httplib::Response& response) {
      json list = json::array();
      if (services_.text) list.push_back(model());
      reply(response, json{{"object", "list"}, {"data", list}});
    });
    if (services.text) {
      get("/v1/models/" + services.text->backend().name,
          [this](httplib::Response& response) { reply(response, model()); });
      post("/v1/completions", [this](const json& body, httplib::Response& response) {
        answer_completion(*services_.text, false, body, response);
      });
      post("/v1/chat/completions", [this](const json& body, httplib::Response& response) {
        answer_completion(*services_.text, true, body, response);
      });
    }
    if (services.digits) {
      get("/v1/digits", [this](httplib::Response& response) { reply(response, services_.digits->shape()); });
      post("/v1/digits",
           [this](const json& body, httplib::Response& response) { reply(response, services_.digits->answer(body)); });
    }
  }
  Routes(const Routes&) = delete;
  Routes& operator=(const Routes&) = delete;

  // New requests are answered with 503 from now on.
  void stop() { stopping_ = true; }

 private:
  // As a pattern for httplib that means this text alone.
  static std::string literal(const std::string& path) {
    std::string pattern;
    for (const char c : path) {
      if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    return pattern;
  }
  template <class F>
  void get(const std::string& path, F handler) {
    methods_[path] += " GET HEAD";
    server_.Get(literal(path), [handler](const httplib::Request&, httplib::Response& response) { handler(response); });
  }
  template <class F>
  void post(const std::string& path, F handler) {
    methods_[path] += " POST";
    server_.Post(literal(path), [this, handler](const httplib::Request& request, httplib::Response& response,
                                                const httplib::ContentReader& reader) {
      handler(read_json(request, reader, most_bytes_), response);
    });
  }

  httplib::Server::HandlerResponse before(const httplib::Request& request, httplib::Response& response) {
    server_.count_request();
    const auto method = methods_.find(request.path);
    // A body that nobody reads would be taken for the next request.
    const bool has_body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
    const bool read = method != methods_.end() && request.method == "POST";
    Connection::current()->must_close = has_body && !read;
    try {
      check(request, method == methods_.end() ? "" : method->second);
    } catch (const HttpError& error) {
      Connection::current()->must_close = has_body;
      reply(response, error);
      if (error.status == 405) response.set_header("Allow", allowed(method->second));
      return httplib::Server::HandlerResponse::Handled;
    }
    return httplib::Server::HandlerResponse::Unhandled;
  }
  void check(const httplib::Request& request, const std::string& methods) const {
    const bool open = request.path == "/" || request.path == "/health";
    if (!token_.empty() && !open && !same_secret("Bearer " + token_, request.get_header_value("Authorization")))
      throw HttpError(401, "expected the server's token, as Authorization: Bearer", "", "invalid_api_key");
    if (methods.empty()) throw HttpError(404, reason_of(404));
    if ((methods + " ").find(" " + request.method + " ") == std::string::npos)
      throw HttpError(405, request.method + " is not allowed here, but " + allowed(methods));
    if (stopping_ && request.method == "POST") throw HttpError(503, "the server is stopping", "", "stopping");
    if (request.has_header("Content-Length") && request.has_header("Transfer-Encoding"))
      throw HttpError(400, "expected Content-Length or Transfer-Encoding, got both");
    const std::string length = request.get_header_value("Content-Length");
    if (length.find_first_not_of("0123456789") != std::string::npos)
      throw HttpError(400, "Content-Length is no number");
    if (length.size() > 15 || (!length.empty() && std::stoull(length) > most_bytes_))
      throw HttpError(413, "expected a body of at most " + std::to_string(most_bytes_) + " bytes, got " + length);
  }
  static std::string allowed(const std::string& methods) {
    std::string list;
    for (const char c : methods.substr(1)) list += c == ' ' ? std::string(", ") : std::string(1, c);
    return list;
  }

  json model() const {
    return {
        {"id", services_.text->backend().name}, {"object", "model"}, {"created", started_}, {"owned_by", "lockstep"}};
  }
  std::string metrics() const {
    const auto metric = [](const char* name, const char* type, const char* help, std::uint64_t value) {
      const std::string full = std::string("serve_") + name;
      return "# HELP " + full + " " + help + "\n# TYPE " + full + " " + type + "\n" + full + " " +
             std::to_string(value) + "\n";
    };
    return metric("connections", "gauge", "Open connections.", static_cast<std::uint64_t>(server_.connections())) +
           metric("refused_connections_total", "counter", "Connections that found no thread.", server_.refused()) +
           metric("requests_total", "counter", "Requests whose head was read.", server_.requests()) +
           services_.metrics();
  }

  HttpServer& server_;
  const Services& services_;
  const std::string token_;
  const std::size_t most_bytes_;
  std::map<std::string, std::string> methods_;  // of a path, each behind a space
  std::atomic<bool> stopping_ = false;
  const std::int64_t started_ = std::time(nullptr);
};

}  // namespace example
