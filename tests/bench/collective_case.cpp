#include "collective_case.h"

#include <algorithm>

#include "lockstep/tensor/ops/factory.h"

namespace lockstep::bench {
namespace {

using namespace lockstep;

template <class T>
T converted(double value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

}  // namespace

CollectiveCase::CollectiveCase(Communicator& comm, Kind kind, DType dtype, RedOp reduction, int root, std::size_t bytes,
                               bool in_place)
    : comm_(comm),
      kind_(kind),
      dtype_(dtype),
      reduction_(reduction),
      root_(root),
      count_(count_of(kind, dtype, bytes, comm.size())),
      in_place_(in_place) {
  const TensorOptions options{.dtype = dtype, .device = comm.device()};
  const std::int64_t own = comm.rank() * count_;
  const Shape inputs{count_ * input_parts()}, outputs{count_ * output_parts()};
  if (!in_place || kind == Kind::all_to_all || kind == Kind::send) {
    input_ = zeros(inputs, options);
    output_ = zeros(outputs, options);
  } else if (input_parts() > 1) {
    input_ = zeros(inputs, options);
    output_ = input_.narrow(0, own, count_);
  } else {
    output_ = zeros(outputs, options);
    input_ = output_parts() > 1 ? output_.narrow(0, own, count_) : output_;
  }
}

bool CollectiveCase::has_many_parts(Kind kind) {
  return kind != Kind::all_reduce && kind != Kind::reduce && kind != Kind::broadcast && kind != Kind::send;
}
std::int64_t CollectiveCase::count_of(Kind kind, DType dtype, std::size_t bytes, int ranks) {
  return static_cast<std::int64_t>(bytes / size_of(dtype) / static_cast<std::size_t>(has_many_parts(kind) ? ranks : 1));
}
std::size_t CollectiveCase::bytes_of(Kind kind, DType dtype, std::int64_t count, int ranks) {
  return static_cast<std::size_t>(count * (has_many_parts(kind) ? ranks : 1)) * size_of(dtype);
}
double CollectiveCase::bus_factor(Kind kind, int ranks) {
  if (kind == Kind::all_reduce) return 2.0 * (ranks - 1) / ranks;
  return has_many_parts(kind) ? static_cast<double>(ranks - 1) / ranks : 1;
}

int CollectiveCase::input_parts() const {
  return kind_ == Kind::reduce_scatter || kind_ == Kind::scatter || kind_ == Kind::all_to_all ? comm_.size() : 1;
}
int CollectiveCase::output_parts() const {
  return kind_ == Kind::all_gather || kind_ == Kind::gather || kind_ == Kind::all_to_all ? comm_.size() : 1;
}
bool CollectiveCase::is_checked() const {
  const bool at_root = comm_.rank() == root_;
  if (kind_ == Kind::reduce || kind_ == Kind::gather) return at_root;
  if (kind_ == Kind::broadcast) return !at_root;
  return kind_ != Kind::send || comm_.size() > 1;
}

// Small integers: their reductions are exact in every dtype, in every order.
double CollectiveCase::element(int rank, int part, std::int64_t i) const {
  const std::int64_t x = i + rank + 5 * part;
  if (dtype_ == DType::boolean) return static_cast<double>(x % 2);
  return static_cast<double>(reduction_ == RedOp::product ? 1 + x % 2 : x % 11);
}

double CollectiveCase::expected(int part, std::int64_t i) const {
  const int rank = comm_.rank(), ranks = comm_.size();
  if (kind_ == Kind::broadcast) return element(root_, 0, i);
  if (kind_ == Kind::all_gather || kind_ == Kind::gather) return element(part, 0, i);
  if (kind_ == Kind::scatter) return element(root_, rank, i);
  if (kind_ == Kind::all_to_all) return element(part, rank, i);
  if (kind_ == Kind::send) return element((rank + ranks - 1) % ranks, 0, i);
  const int own = kind_ == Kind::reduce_scatter ? rank : 0;
  double result = element(0, own, i);
  for (int r = 1; r < ranks; ++r) {
    const double next = element(r, own, i);
    if (reduction_ == RedOp::max) result = std::max(result, next);
    if (reduction_ == RedOp::min) result = std::min(result, next);
    if (reduction_ == RedOp::product) result *= next;
    if (reduction_ == RedOp::sum || reduction_ == RedOp::avg) result += next;
  }
  if (dtype_ == DType::boolean) return result != 0;
  // Divided as the communicator does.
  if (reduction_ == RedOp::avg)
    return dtype_ == DType::f64 ? result / ranks : static_cast<float>(result) / static_cast<float>(ranks);
  if (dtype_ == DType::i8) return static_cast<std::int8_t>(static_cast<std::int64_t>(result));
  return dtype_ == DType::u8 ? static_cast<std::uint8_t>(static_cast<std::int64_t>(result)) : result;
}

void CollectiveCase::fill() {
  output_.zero_();
  dispatch(dtype_, [&]<class T>(Type<T>) {
    std::vector<Stored<T>> values(static_cast<std::size_t>(input_.count()));
    for (int part = 0; part < input_parts(); ++part)
      for (std::int64_t i = 0; i < count_; ++i)
        values[static_cast<std::size_t>(part * count_ + i)] = converted<Stored<T>>(element(comm_.rank(), part, i));
    Tensor source = from_data(std::span<const Stored<T>>(values), input_.shape(), {.device = comm_.device()});
    Tensor(input_).copy_(source);
  });
}

void CollectiveCase::perform() {
  const int rank = comm_.rank(), ranks = comm_.size();
  switch (kind_) {
    case Kind::all_reduce:
      return comm_.all_reduce(input_, output_, reduction_);
    case Kind::reduce:
      return comm_.reduce(input_, output_, root_, reduction_);
    case Kind::reduce_scatter:
      return comm_.reduce_scatter(input_, output_, reduction_);
    case Kind::broadcast:
      return comm_.broadcast(rank == root_ ? input_ : output_, root_);
    case Kind::all_gather:
      return comm_.all_gather(input_, output_);
    case Kind::gather:
      return comm_.gather(input_, output_, root_);
    case Kind::scatter:
      return comm_.scatter(input_, output_, root_);
    case Kind::all_to_all:
      return comm_.all_to_all(input_, output_);
    default:
      if (ranks == 1) return;
      // Around the ring; one receives first, since a send may wait for its receiver.
      if (rank != 0) comm_.recv(output_, rank - 1);
      comm_.send(input_, (rank + 1) % ranks);
      if (rank == 0) comm_.recv(output_, ranks - 1);
  }
}

void CollectiveCase::spoil() {
  if (!is_checked() || output_.count() == 0) return;
  const std::int64_t last = output_.count() - 1, part = last / count_;
  const bool was = expected(static_cast<int>(part), last % count_) != 0;
  output_.flatten().narrow(0, last, 1).fill_(was ? 0 : 1);
}

std::int64_t CollectiveCase::count_wrong() const {
  if (!is_checked()) return 0;
  return dispatch(dtype_, [&]<class T>(Type<T>) {
    const std::vector<double> got = output_.to_vector<double>();
    std::int64_t wrong = 0;
    for (int part = 0; part < output_parts(); ++part)
      for (std::int64_t i = 0; i < count_; ++i) {
        const T want = converted<T>(expected(part, i));
        wrong += !(got[static_cast<std::size_t>(part * count_ + i)] == static_cast<double>(want));
      }
    return wrong;
  });
}

}  // namespace lockstep::bench
