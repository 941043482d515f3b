// A server that answers which digit a picture shows, and how a text goes on: a page to try both in a browser, and the
// interface of OpenAI's clients. Behind it are a ReplicaPool and a Generator; the rest is what a server in the open
// needs around them. Read serve/routes.h first.
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "lockstep/lockstep.h"
#include "serve/options.h"
#include "serve/routes.h"

namespace example {
namespace {

// Of the whole process: blocked in every thread, so that one thread waits for them.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGINT);
    ::sigaddset(&set_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  int wait() const {
    int signal = 0;
    while (::sigwait(&set_, &signal) != 0) {
    }
    return signal;
  }
  // The next one ends the program at once.
  void end_at_next() const {
    std::thread([signals = *this] { ::_exit(128 + signals.wait()); }).detach();
  }

 private:
  sigset_t set_{};
};

int listen(HttpServer& server, const ServeOptions& options) {
  // httplib would share the port with another server of the same user.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  int port = options.port;
  const bool bound =
      port == 0 ? (port = server.bind_to_any_port(options.host)) > 0 : server.bind_to_port(options.host, options.port);
  if (!bound)
    throw UsageError(lockstep::cat("--port: expected an address that is free, got ", options.host, ":", options.port));
  server.widen_backlog();
  return port;
}

int run(const ServeOptions& options) {
  const Signals signals;
  Services services;
  try {
    if (!options.digits.empty()) services.digits = std::make_unique<DigitsService>(options);
    if (!options.text.empty() || !options.model.empty()) services.text = std::make_unique<TextService>(options);
  } catch (const lockstep::Error& error) {
    throw UsageError(error.what());
  }
  const ConnectionLimits limits;
  HttpServer server(options.workers, limits);
  Routes routes(server, services, options.token, limits.body_bytes);
  const int port = listen(server, options);
  std::thread listener([&] { server.listen_after_bind(); });
  const bool wide = options.host.find(':') != std::string::npos;  // IPv6
  std::printf("serve: http://%s%s%s:%d/\n", wide ? "[" : "", options.host.c_str(), wide ? "]" : "", port);
  std::fflush(stdout);

  signals.wait();
  signals.end_at_next();
  routes.stop();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(options.stop_seconds);
  while ((server.answering() > 0 || !server.is_running()) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  services.close();
  server.close_connections();
  server.stop();
  listener.join();
  return 0;
}

}  // namespace
}  // namespace example

// Exits with 0 after SIGTERM or Ctrl-C, 1 when something failed, 2 when the command line or a model is not right.
int main(int argc, char** argv) {
  return example::run_program("serve", [&] {
    const auto options = example::parse_serve_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
