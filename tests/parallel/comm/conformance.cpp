#include "parallel/comm/conformance.h"

#include <algorithm>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"

namespace conformance {

std::span<const Check> checks() {
  static constexpr Check kChecks[] = {
      {"every collective, dtype, reduction and count", every_collective},
      {"large messages", large_messages},
      {"reductions are in the order of the ranks, and all ranks get the same bits", order_of_ranks},
      {"f16 and bf16 are rounded once", rounds_once},
      {"many collectives in a row", many_in_a_row},
      {"send and receive", send_and_receive},
      {"exchanges between hosts", exchanges},
      {"splits", splits},
      {"two communicators at once", two_at_once},
      {"all_to_all of uneven parts", uneven_all_to_all},
      {"batches of sends and receives", batches},
      {"several tensors in one call", several_tensors},
      {"lists that differ are an error that names both", disagreeing_lists},
      {"arguments that do not fit are refused before anything is enqueued", wrong_arguments},
      {"calls that differ are an error on every rank that names both", disagreements},
      {"a send that its receiver does not expect is an error on both sides", disagreeing_pairs},
      {"abort wakes every rank and says why", aborts},
      {"a rank that leaves is named", leaving},
      {"at the deadline the missing rank is named", deadlines},
      {"a barrier names all that are missing", all_missing},
      {"after a failure the ranks that are left make a communicator of their own", shrinks},
      {"shrink without a failure: excluded and late ranks", shrinks_without_failure},
      {"after a failure every call throws it, and the ranks can go on with another communicator", after_a_failure},
  };
  return kChecks;
}

std::vector<int> counts(const Ranks& ranks, int fewest) {
  std::vector<int> result;
  int most = watched() ? std::min(ranks.most, 3) : ranks.most;
#ifdef __SANITIZE_THREAD__  // each look of who waits on the fake costs a thousand times what it costs elsewhere
  if (support::device_type() == DeviceType::cuda) most = std::min(most, 2);
#endif
  for (int n = fewest; n <= most; ++n) result.push_back(n);
  return result;
}

void expect_all(const Ranks& ranks, int count, const Body& body, Milliseconds timeout) {
  INFO(ranks.name << ", " << count << " ranks");
  const std::vector<std::string> said = ranks.run(count, timeout, body);
  REQUIRE(said.size() == static_cast<std::size_t>(count));
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(said[rank] == "");
  }
}

std::string comm_error(Communicator& comm, std::initializer_list<std::string> parts, const std::function<void()>& body,
                       int named) {
  try {
    body();
    synchronize(current_stream(comm.device()), kPatience);
  } catch (const CommError& error) {
    const std::string wrong = missing(error.what(), parts);
    if (!wrong.empty() || named < 0) return wrong;
    if (error.rank != named) return cat("expected rank ", named, " to be named: ", error.what());
    return comm.failure() && comm.failure()->rank == named ? "" : "expected failure() to name that rank, too";
  } catch (const std::exception& error) {
    return std::string("not a CommError: ") + error.what();
  }
  return "expected a CommError, got none";
}

std::string refused(std::initializer_list<std::string> parts, const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return missing(error.what(), parts);
  } catch (const std::exception& error) {
    return std::string("not an InvalidArgument: ") + error.what();
  }
  return cat("expected an InvalidArgument with ", *parts.begin(), ", got none");
}

Tensor tensor_of(const std::vector<double>& values, DType dtype, Device device) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  return dispatch(dtype, [&]<class T>(Type<T>) {
    if constexpr (std::is_same_v<T, bool>) {
      return from_data(std::vector<bool>(values.begin(), values.end()), shape, {.device = device});
    } else {
      std::vector<T> elements(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
          elements[i] = T(static_cast<float>(values[i]));
        else
          elements[i] = static_cast<T>(values[i]);
      }
      return from_data(elements, shape, {.device = device});
    }
  });
}

std::string differs(const Tensor& tensor, const std::vector<double>& expected) {
  const std::vector<double> got = tensor.to_vector<double>();
  if (got.size() != expected.size()) return cat("expected ", expected.size(), " elements, got ", got.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != expected[i]) return cat("element ", i, ": expected ", expected[i], ", got ", got[i]);
  return "";
}

}  // namespace conformance
