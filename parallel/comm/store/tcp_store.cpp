#include "lockstep/parallel/comm/store/tcp_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store/ended_ranks.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_table.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/parallel/comm/store/will.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::Fd;
using detail::SocketResult;
namespace wire = detail::wire;

constexpr Milliseconds kAttempt{10'000};  // one attempt to connect and be greeted
constexpr Milliseconds kGrace{2'000};     // for the server's answer that nobody set a key in time
constexpr std::size_t kMaxIdle = 8;

class TcpStore final : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : options_(options), endpoints_(detail::resolve(detail::parse_host_port("TcpStore", options.address))) {
    LOCKSTEP_CHECK(options.token.empty() || options.token.size() >= TcpStoreServer::kMinTokenBytes,
                   "[TcpStore] expected a token of at least ", TcpStoreServer::kMinTokenBytes, " bytes, got ",
                   options.token.size());
    for (const auto& endpoint : endpoints_)
      LOCKSTEP_CHECK(endpoint.loopback() || !options.token.empty(), "[TcpStore] expected a token (LOCKSTEP_TOKEN_FILE",
                     " or LOCKSTEP_TOKEN) for an address beyond the loopback, got none for ", options.address);
    idle_.push_back(connect(Deadline::after(options.connect_timeout), true));
  }

  void set(const std::string& key, const std::string& value) override {
    detail::check_value("Store.set", key, value);
    call("set", {.op = wire::Op::set, .key = key, .first = value});
  }
  std::string get(const std::string& key, Deadline deadline) override {
    const Milliseconds left = deadline.left();
    const wire::Request request{.op = wire::Op::get, .number = deadline.never() ? -1 : left.count(), .key = key};
    const Deadline answer = deadline.never() ? deadline : Deadline::after(left + kGrace);
    Reply reply = call("get", request, answer);
    if (reply.status == wire::Status::timeout)
      throw TimeoutError(cat("[Store.get] nobody set '", key, "' before the deadline"));
    return std::move(reply.value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    Reply reply = call("try_get", {.op = wire::Op::try_get, .key = key});
    return reply.status == wire::Status::absent ? std::nullopt : std::optional(std::move(reply.value));
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return call("add", {.op = wire::Op::add, .number = amount, .key = key}).number;
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    detail::check_value("Store.compare_set", key, desired);
    detail::check_value("Store.compare_set", key, expected);
    return call("compare_set", {.op = wire::Op::compare_set, .key = key, .first = expected, .second = desired}).value;
  }
  bool erase(const std::string& key) override { return call("erase", {.op = wire::Op::erase, .key = key}).number != 0; }
  std::vector<EndedRank> ended_ranks() override {
    std::vector<EndedRank> ended;
    if (options_.host_rank >= 0) return ended;
    const std::int64_t count = std::stoll(try_get(detail::kEndedCount).value_or("0"));
    for (std::int64_t n = 1; n <= count; ++n) {
      const std::string line = try_get(detail::ended_key(n)).value_or("");  // absent: it is being written
      if (const auto space = line.find(' '); space != line.npos)
        ended.push_back({std::stoi(line.substr(0, space)), line.substr(space + 1)});
    }
    return ended;
  }

  // Of a store that is used for this alone: its connection.
  Fd leave_will(const std::string& key, const std::string& value) {
    call("leave_will", {.op = wire::Op::will, .key = key, .first = value});
    return take();
  }

 private:
  struct Reply {
    wire::Status status;
    std::int64_t number;
    std::string value;
  };

  std::string where() const {
    return cat("the store at ", options_.address, options_.host_rank < 0 ? "" : cat(" of rank ", options_.host_rank));
  }
  CommError error(const std::string& message) const { return CommError(options_.host_rank, "store", message); }

  // All later calls fail with what the first one found.
  [[noreturn]] void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    idle_.clear();
    if (!lost_) lost_ = error(message);
    throw *lost_;
  }

  Reply call(const char* name, const wire::Request& request) {
    return call(name, request, Deadline::after(options_.timeout));
  }
  Reply call(const char* name, const wire::Request& request, Deadline deadline) {
    detail::check_key(name, request.key);
    Fd socket = take();
    if (!socket) socket = connect(Deadline::after(options_.timeout), false);
    const auto check = [&](SocketResult result) {
      if (result == SocketResult::closed) lose(cat(where(), " is gone: its process or machine ended"));
      if (result == SocketResult::timeout) {
        const std::string what =
            cat(where(), " did not answer '", name, "' of '", request.key, "' before the deadline");
        if (request.op == wire::Op::get) throw TimeoutError(cat("[Store.get] ", what));
        throw error(what);
      }
    };
    check(detail::send_all(socket.get(), wire::encode(request), deadline));
    char head[4 + wire::kReplyHead];
    check(detail::receive_all(socket.get(), head, sizeof head, deadline));
    const std::size_t length = wire::take<std::uint32_t>(head);
    if (length < wire::kReplyHead || length > wire::kMaxReply || head[4] != wire::kVersion)
      lose(cat(where(), " answered with what is no reply"));
    Reply reply{static_cast<wire::Status>(head[5]), wire::take<std::int64_t>(head + 6), {}};
    reply.value.resize(length - wire::kReplyHead);
    check(detail::receive_all(socket.get(), reply.value.data(), reply.value.size(), deadline));
    give_back(std::move(socket));
    if (reply.status == wire::Status::invalid) throw InvalidArgument(reply.value);
    return reply;
  }

  Fd take() {
    const std::lock_guard lock(mutex_);
    if (lost_) throw *lost_;
    if (idle_.empty()) return {};
    Fd socket = std::move(idle_.back());
    idle_.pop_back();
    return socket;
  }
  void give_back(Fd socket) {
    const std::lock_guard lock(mutex_);
    if (!lost_ && idle_.size() < kMaxIdle) idle_.push_back(std::move(socket));
  }

  // `first`: the server may not be there yet; later, one that refuses has ended.
  Fd connect(Deadline deadline, bool first) {
    auto pause = Milliseconds(5);
    std::string problem;
    // An attempt that the deadline cut short tells less than one before it that ended.
    const auto learn = [&](std::string text) {
      if (problem.empty() || !deadline.passed()) problem = std::move(text);
    };
    while (true) {
      for (const auto& endpoint : endpoints_) {
        Fd socket;
        const Deadline attempt = deadline.left() <= kAttempt ? deadline : Deadline::after(kAttempt);
        const int failed = detail::connect_to(endpoint, attempt, socket);
        if (failed == 0) {
          const auto said = greet(socket.get(), attempt);
          if (!said) return socket;
          learn(*said);
        } else {
          learn(std::strerror(failed));
          if (!first && failed == ECONNREFUSED) lose(cat(where(), " is gone: its process ended"));
        }
      }
      if (deadline.left() <= pause) throw error(cat("cannot reach ", where(), " before the deadline: ", problem));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, Milliseconds(500));
    }
  }

  // Nothing when both sides are satisfied; a problem that may pass; CommError for one that will not.
  std::optional<std::string> greet(int socket, Deadline deadline) {
    const auto trouble = [](SocketResult result) {
      return result == SocketResult::timeout ? "it accepts connections, but does not answer"
                                             : "it closed the connection";
    };
    std::string hello(wire::kHelloBytes, '\0');
    if (const auto got = detail::receive_all(socket, hello.data(), hello.size(), deadline); got != SocketResult::done)
      return trouble(got);
    if (!hello.starts_with(wire::kMagic)) throw error(cat(options_.address, " is not a Lockstep store"));
    if (hello[4] != wire::kVersion)
      throw error(cat("expected a store of version ", int{wire::kVersion}, ", got version ", int{hello[4]}, " at ",
                      options_.address));
    const bool has_token = !options_.token.empty(), wants_token = hello[5] != 0;
    if (has_token != wants_token)
      throw error(wants_token ? cat(where(), " wants a token (LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN), got none")
                              : cat(where(), " knows no token, but this rank has one: is it another job's?"));
    const std::string nonce = detail::random_bytes(wire::kNonceBytes), server_nonce = hello.substr(6);
    std::string greeting(wire::kMagic);
    greeting += {wire::kVersion, static_cast<char>(has_token)};
    greeting += nonce;
    greeting +=
        has_token ? wire::proof(options_.token, "client", server_nonce, nonce) : std::string(wire::kProofBytes, '\0');
    if (const auto sent = detail::send_all(socket, greeting, deadline); sent != SocketResult::done)
      return trouble(sent);
    std::string verdict(wire::kVerdictBytes, '\0');
    if (const auto got = detail::receive_all(socket, verdict.data(), verdict.size(), deadline);
        got != SocketResult::done)
      return trouble(got);
    switch (static_cast<wire::Verdict>(verdict[0])) {
      case wire::Verdict::welcome:
        break;
      case wire::Verdict::full:
        return "it has as many connections as it takes";
      default: {
        const std::string_view round = detail::environment(detail::kRound);
        throw error(
            cat(where(), " has another token than this rank",
                round.empty() ? "" : cat(", which is of round ", round, " of its job: has a later one begun?")));
      }
    }
    if (has_token && !detail::equal_in_constant_time(std::string_view(verdict).substr(1),
                                                     wire::proof(options_.token, "server", server_nonce, nonce)))
      throw error(cat("what listens at ", options_.address, " does not know the token"));
    return std::nullopt;
  }

  const TcpStoreOptions options_;
  const std::vector<detail::Endpoint> endpoints_;
  std::mutex mutex_;
  std::vector<Fd> idle_;
  std::optional<CommError> lost_;
};

std::string checked_token(const std::string& from, std::string token) {
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  LOCKSTEP_CHECK(token.size() >= TcpStoreServer::kMinTokenBytes && token.size() <= 4096, "[", from,
                 "] expected a token of ", TcpStoreServer::kMinTokenBytes, " to 4096 bytes, got ", token.size());
  return token;
}

}  // namespace

detail::Fd detail::leave_will(const TcpStoreOptions& options, const std::string& key, const std::string& value) {
  return TcpStore(options).leave_will(key, value);
}

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) { return std::make_shared<TcpStore>(options); }

std::string store_token_from_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  LOCKSTEP_CHECK(file && ::fstat(file.get(), &status) == 0, "[LOCKSTEP_TOKEN_FILE] cannot read '", path,
                 "': ", std::strerror(errno));
  LOCKSTEP_CHECK(S_ISREG(status.st_mode), "[LOCKSTEP_TOKEN_FILE] expected a file, got '", path, "'");
  LOCKSTEP_CHECK((status.st_mode & 077) == 0,
                 "[LOCKSTEP_TOKEN_FILE] expected a file that only its owner can read (chmod 600), got '", path, "'");
  std::string token(5000, '\0');
  const ssize_t got = ::read(file.get(), token.data(), token.size());
  LOCKSTEP_CHECK(got >= 0, "[LOCKSTEP_TOKEN_FILE] cannot read '", path, "': ", std::strerror(errno));
  token.resize(static_cast<std::size_t>(got));
  return checked_token(path, std::move(token));
}

std::string store_token() {
  const std::string file(detail::environment("LOCKSTEP_TOKEN_FILE")), token(detail::environment("LOCKSTEP_TOKEN"));
  LOCKSTEP_CHECK(file.empty() || token.empty(),
                 "[store_token] expected LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN, got both");
  if (!file.empty()) return store_token_from_file(file);
  return token.empty() ? token : checked_token("LOCKSTEP_TOKEN", token);
}

}  // namespace lockstep
