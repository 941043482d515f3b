// Kernels on streams that are threads, and what the order checker knows of their views. Each host mode asks what it
// can.
#include <cstring>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kRows = 8, kColumns = 16;

class Matrix {  // f32 on one host device, for work on one stream
 public:
  explicit Matrix(const Stream& stream)
      : block_(allocate(stream, static_cast<std::size_t>(kRows * kColumns) * sizeof(float))) {}
  Matrix(const Matrix&) = delete;
  ~Matrix() { release(block_); }

  View all() const { return view(0, kRows, kColumns, kColumns, 1); }
  View columns(std::int64_t first, std::int64_t count) const { return view(first, kRows, count, kColumns, 1); }
  View transposed() const { return view(0, kColumns, kRows, 1, kColumns); }
  const float* data() const { return static_cast<const float*>(block_->data); }

 private:
  View view(std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
            std::int64_t column_stride) const {
    return {static_cast<float*>(block_->data) + first,
            {rows, columns},
            {row_stride, column_stride},
            DType::f32,
            block_->device,
            true};
  }
  MemoryBlock* block_;
};

void fill(const Stream& stream, const View& view, double value) { kernels::launch(stream, FillArgs{Out{view}, value}); }
void double_in_place(const Stream& stream, const View& view) {
  kernels::launch(stream, UnaryArgs{UnaryOp::mul_scalar, In{view}, Out{view}, 2});
}

std::string report_of(void (*program)(const Stream&, const Stream&, const Matrix&)) {
  const Device device = Device::host(0);
  Stream first(device), second(device);
  const Matrix matrix(first);
  second.wait_for(first);
  std::string report;
  try {
    program(first, second, matrix);
  } catch (const RaceError& error) {
    report = error.what();
  }
  synchronize(first);
  synchronize(second);
  return report;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("kernels run on the stream they were given, after what it waits for", "[streams]") {
  const Device device = Device::host(0);
  Stream first(device), second(device);
  const Matrix matrix(first);
  for (int round = 1; round <= 50; ++round) {
    first.wait_for(second);
    fill(first, matrix.all(), round);
    second.wait_for(first);
    double_in_place(second, matrix.transposed());
  }
  synchronize(second);
  for (int i = 0; i < kRows * kColumns; ++i) CHECK(matrix.data()[i] == 100);
}

TEST_CASE("an index out of range surfaces at the wait, and the stream goes on", "[streams]") {
  const Device device = Device::host(0);
  Stream stream(device);
  const Matrix matrix(stream), result(stream);
  MemoryBlock* index = allocate(stream, sizeof(std::int64_t));
  const std::int64_t beyond = kColumns;
  stream.enqueue([index, beyond] { std::memcpy(index->data, &beyond, sizeof beyond); });
  fill(stream, matrix.all(), 1);
  const View positions{index->data, {1}, {1}, DType::i64, device, true};
  const auto select = [&] {
    kernels::launch(stream, IndexSelectArgs{In{matrix.all()}, In{positions}, Out{result.columns(0, 1)}, 1});
    synchronize(stream);
  };
  CHECK_THROWS_AS(select(), InvalidArgument);
  fill(stream, matrix.all(), 3);
  synchronize(stream);
  CHECK(matrix.data()[0] == 3);
  release(index);
}

TEST_CASE("the checker knows what kernels read and write, element by element", "[streams]") {
  if (!default_stream(Device::host(0)).checked()) return;
  const std::uint64_t skipped = order_stats().skipped_uses;  // by other tests
  for (int round = 0; round < 50; ++round) {
    CHECK(contains(report_of([](const Stream& first, const Stream& second, const Matrix& matrix) {
                     fill(first, matrix.all(), 1);
                     double_in_place(second, matrix.all());
                   }),
                   "'unary' (kernels/strict_test.cpp:"));
    CHECK(report_of([](const Stream& first, const Stream& second, const Matrix& matrix) {
            fill(first, matrix.columns(0, 8), 1);  // halves of every row: no byte in common
            fill(second, matrix.columns(8, 8), 2);
          }) == "");
    CHECK(contains(report_of([](const Stream& first, const Stream& second, const Matrix& matrix) {
                     fill(first, matrix.columns(0, 9), 1);
                     fill(second, matrix.columns(8, 8), 2);
                   }),
                   " writes 4 bytes at 0x"));
    CHECK(report_of([](const Stream& first, const Stream& second, const Matrix& matrix) {
            fill(first, matrix.all(), 1);
            second.wait_for(first);
            double_in_place(second, matrix.transposed());
            first.wait_for(second);
            fill(first, matrix.all(), 1);
          }) == "");
  }
  CHECK(order_stats().skipped_uses == skipped);
}
