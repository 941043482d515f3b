// What travels between a TCP store and its clients; numbers are little-endian.
//
//   on connecting   server: magic, version, whether it wants a token, nonce
//                   client: magic, version, whether it has a token, nonce, proof (zeros without a token)
//                   server: verdict, proof
//   then, in turn   client: Request, server: Reply
//
// A client has one request under way per connection; one that sends more than that is cut off.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::detail::wire {

static_assert(std::endian::native == std::endian::little, "the store's numbers are copied as they are");

constexpr std::string_view kMagic = "LSTK";
constexpr char kVersion = 2;
constexpr std::size_t kNonceBytes = 32, kProofBytes = 32;
constexpr std::size_t kHelloBytes = 4 + 1 + 1 + kNonceBytes;
constexpr std::size_t kGreetingBytes = kHelloBytes + kProofBytes;
constexpr std::size_t kVerdictBytes = 1 + kProofBytes;

enum class Verdict : char { welcome, denied, full };
// will: once this connection has closed, the key gets `first` unless it has a value
enum class Op : char { set, get, try_get, add, compare_set, erase, will };
enum class Status : char { ok, absent, timeout, invalid };  // invalid: the reply's value says why

// length (of what follows), version, op, number, lengths of the three texts, the texts
constexpr std::size_t kRequestHead = 1 + 1 + 8 + 3 * 4;
constexpr std::size_t kMaxRequest = kRequestHead + Store::kMaxKeyBytes + 2 * Store::kMaxValueBytes;
struct Request {
  Op op = Op::set;
  std::int64_t number = 0;  // add: the amount; get: milliseconds to wait at most, -1: for ever
  std::string_view key, first, second;
};

// length (of what follows), version, status, number, value
constexpr std::size_t kReplyHead = 1 + 1 + 8;
constexpr std::size_t kMaxReply = kReplyHead + Store::kMaxValueBytes;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T take(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline std::string encode(const Request& request) {
  std::string out;
  out.reserve(4 + kRequestHead + request.key.size() + request.first.size() + request.second.size());
  put(out,
      static_cast<std::uint32_t>(kRequestHead + request.key.size() + request.first.size() + request.second.size()));
  out += {kVersion, static_cast<char>(request.op)};
  put(out, request.number);
  for (const auto text : {request.key, request.first, request.second})
    put(out, static_cast<std::uint32_t>(text.size()));
  return out.append(request.key).append(request.first).append(request.second);
}

// `body` is what follows the length. Empty for what is no request.
inline std::optional<Request> decode(std::string_view body) {
  if (body.size() < kRequestHead || body[0] != kVersion || body[1] < 0 || body[1] > static_cast<char>(Op::will))
    return std::nullopt;
  Request request{.op = static_cast<Op>(body[1]), .number = take<std::int64_t>(body.data() + 2)};
  const std::size_t key = take<std::uint32_t>(body.data() + 10), first = take<std::uint32_t>(body.data() + 14),
                    second = take<std::uint32_t>(body.data() + 18);
  if (key > Store::kMaxKeyBytes || first > Store::kMaxValueBytes || second > Store::kMaxValueBytes ||
      body.size() != kRequestHead + key + first + second)
    return std::nullopt;
  request.key = body.substr(kRequestHead, key);
  request.first = body.substr(kRequestHead + key, first);
  request.second = body.substr(kRequestHead + key + first, second);
  return request;
}

// What a side shows of the token: different for the two sides, so that neither can be answered with its own.
inline std::string proof(std::string_view token, std::string_view side, std::string_view server_nonce,
                         std::string_view client_nonce) {
  std::string message = "lockstep store 1 ";
  message.append(side).append(server_nonce).append(client_nonce);
  const Digest code = hmac_sha256(token, message);
  return {reinterpret_cast<const char*>(code.data()), code.size()};
}

}  // namespace lockstep::detail::wire
