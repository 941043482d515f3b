#include "lockstep/parallel/comm/ranks/connect_store.h"

#include <atomic>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace lockstep {
namespace {

// A store and its server: the server goes last.
struct Hosted {
  TcpStoreServer server;
  std::shared_ptr<Store> client;
};

}  // namespace

std::shared_ptr<Store> connect_store(const RankInfo& ranks, const ConnectOptions& options) {
  if (ranks.store.empty()) {
    LOCKSTEP_CHECK(ranks.size == 1, "[connect_store] expected the address of a store (LOCKSTEP_STORE=host:port, or ",
                   "MASTER_ADDR and MASTER_PORT, the same for all ranks), got none from ", ranks.source);
    return make_local_store();
  }
  const std::string token = store_token();
  const TcpStoreOptions client{.address = ranks.store,
                               .token = token,
                               .host_rank = ranks.store_hosted ? -1 : 0,
                               .connect_timeout = options.connect_timeout,
                               .timeout = options.timeout};
  if (ranks.store_hosted || ranks.rank != 0) return make_tcp_store(client);
  const detail::HostPort address = detail::parse_host_port("LOCKSTEP_STORE", ranks.store);
  const auto hosted = std::shared_ptr<Hosted>(
      new Hosted{TcpStoreServer({.address = address.host, .port = address.port, .token = token}), nullptr});
  hosted->client = make_tcp_store(client);
  static std::atomic<bool> said{false};
  if (token.empty() && !said.exchange(true))
    log(LogLevel::warning, cat("[connect_store] rank 0 serves the store at ", ranks.store,
                               " without a token: every user of this machine can take part in the job, and end it. "
                               "LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE keep others out"));
  return {hosted, hosted->client.get()};
}

}  // namespace lockstep
