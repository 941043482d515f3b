#include "lockstep/parallel/launch/nodes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr Milliseconds kBeat{500}, kLate{2'000};
constexpr char kEnd[] = "lockstep-run/end", kShape[] = "lockstep-run/shape";

End parse_end(const std::string& text) {
  End end{.code = 1};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), end.code);
  if (error == std::errc() && stop != text.data() + text.size())
    end.message.assign(stop + 1, text.data() + text.size());
  return end;
}

}  // namespace

Nodes::Nodes(const Options& options, std::string token, const std::string& run_id)
    : options_(options),
      token_(std::move(token)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      beats_(static_cast<std::size_t>(options.nodes)) {
  if (options.nodes == 1) {
    server_ = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.token = token_});
    address_ = server_->address();
    return;
  }
  address_ = options.master;
  const auto master = detail::parse_host_port("--master", options.master);
  if (options.node == 0)
    server_ = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.address = master.host, .port = master.port, .token = token_});
  store_ = make_tcp_store(
      {.address = address_, .token = token_, .connect_timeout = options.timeout, .timeout = options.timeout});
  const std::string shape = cat(options.nodes, " nodes of ", options.ranks, " ranks");
  // Node 0 says it, so that whoever comes first, it is the other one that does not fit.
  if (options.node == 0) store_->set(kShape, shape);
  const std::string first = store_->get(kShape, Deadline::after(options.timeout));
  LOCKSTEP_CHECK(first == shape, "expected the same on all nodes, got ", shape, " on node ", options.node, " and ",
                 first, " on another");
  LOCKSTEP_CHECK(store_->compare_set(key("node", options.node), "", run_id) == run_id,
                 "expected one lockstep-run per node, got two with --node-rank ", options.node);
}

Nodes::~Nodes() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
}

std::string Nodes::key(const char* name, int node) const { return cat("lockstep-run/", name, '/', node); }

void Nodes::conclude(End end) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  end_ = std::move(end);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

std::optional<End> Nodes::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

void Nodes::report(const End& end) {
  if (!store_ || lost_) return conclude(end);
  try {
    if (end.code == 0) {
      store_->set(key("done", options_.node), "");
    } else {
      conclude(parse_end(store_->compare_set(kEnd, "", cat(end.code, ' ', end.message))));
    }
  } catch (const Error& error) {
    conclude(end.code != 0 ? end : End{1, cat("lost the other nodes: ", error.what())});
  }
}

void Nodes::watch() {
  if (!store_) return;
  watcher_ = std::thread([this] {
    try {
      while (!stop_ && !look()) {
      }
    } catch (const Error& error) {
      lost_ = true;
      conclude({1, cat("lost the other nodes: ", error.what())});
    }
  });
}

// Whether the job has ended.
bool Nodes::look() {
  store_->add(key("beat", options_.node), 1);
  if (options_.node == 0) {
    int done = 0;
    for (int node = 0; node < options_.nodes; ++node) {
      if (store_->try_get(key("done", node))) {
        ++done;
        continue;
      }
      Beat& beat = beats_[static_cast<std::size_t>(node)];
      const std::string count = store_->try_get(key("beat", node)).value_or("");
      if (count != beat.count) beat = {count};
      if (Clock::now() - beat.since < options_.timeout) continue;
      store_->compare_set(kEnd, "",
                          cat("1 node ", node, count.empty() ? " did not come within " : " was silent for ",
                              std::chrono::duration<double>(options_.timeout).count(), " s"));
    }
    if (done == options_.nodes) store_->compare_set(kEnd, "", "0 ");
  }
  try {
    conclude(parse_end(store_->get(kEnd, Deadline::after(kBeat))));
    return true;
  } catch (const TimeoutError&) {
    return false;
  }
}

void Nodes::leave(bool wait_for_late) {
  if (!store_ || lost_) return;
  try {
    store_->set(key("left", options_.node), "");
    if (options_.node != 0) return;
    const Deadline late = Deadline::after(wait_for_late ? options_.grace : Milliseconds(0));
    const Deadline deadline = Deadline::after(options_.grace + kLate);
    for (int node = 0; node < options_.nodes; ++node) {
      try {
        store_->get(key("node", node), late);
        store_->get(key("left", node), deadline);
      } catch (const TimeoutError&) {
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace lockstep::launch
