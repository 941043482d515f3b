// Attention that goes to cuDNN, here to one that runs graphs operation by operation: which calls go there, and with
// what.
#include "lockstep/kernels/cuda/cudnn_attention.h"

#include <utility>
#include <vector>

#include "cuda_emulation/attention_cases.h"
#include "cudnn/stand_in.h"

using namespace attention_cases;

namespace emulation {
extern int compute_capability_major;
}

namespace {

// What cuDNN has for attention while one lives; then nothing, as before the first one.
class Offered {
 public:
  explicit Offered(std::vector<cudnn_stand_in::Engine> engines) {
    cudnn_stand_in::graph_engines() = std::move(engines);
    forget_plans();
  }
  Offered(const Offered&) = delete;
  Offered& operator=(const Offered&) = delete;
  ~Offered() {
    cudnn_stand_in::graph_engines().clear();
    forget_plans();
  }

 private:
  // A full engine starts over with the next kind of call.
  static void forget_plans() {
    const std::size_t before = std::exchange(kernels::cuda::most_cudnn_plans, 0);
    for (const std::int64_t size : {5, 6}) {
      TestTensor x(DType::f32, {1, 1, size, size}), w(DType::f32, {2, 1, 3, 3}),
          y(DType::f32, {1, 2, size - 2, size - 2});
      run(Conv2dArgs{x.in(), w.in(), {}, y.out(), {.kernel = {3, 3}}, 1});
    }
    kernels::cuda::most_cudnn_plans = before;
  }
};

std::vector<cudnn_stand_in::Graph> graphs;
const bool computing_graphs = [] {
  cudnn_stand_in::graph_engines().clear();
  cudnn_stand_in::hooks().execute_graph = [](cudnn::Handle, const cudnn_stand_in::Graph& graph) {
    graphs.push_back(graph);
    cudnn_stand_in::compute(graph);
    return cudnn::kSuccess;
  };
  return true;
}();

const std::vector<cudnn_stand_in::Engine> kEngines = {{5, {cudnn::kTensorCore, cudnn::kNondeterministic}},
                                                      {6, {cudnn::kTensorCore}, 256}};

}  // namespace

TEST_CASE("attention by cuDNN is what its graph says", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  constexpr auto lower = CausalVariant::lower_right;
  const std::vector<Problem> problems = {
      {2, 2, 2, 70, 65, 16, 24},
      {2, 4, 2, 70, 67, 8, 16, Layout::contiguous, true},
      {1, 3, 1, 66, 90, 24, 8, Layout::contiguous, true, lower},
      {2, 2, 2, 64, 64, 8, 8, Layout::contiguous, true, lower},
      {1, 4, 2, 90, 70, 8, 8, Layout::contiguous, true},
  };
  for (const Problem& p : problems) {
    graphs.clear();
    check(p, DType::bf16, "attention by cuDNN;", "attention_grad by cuDNN;");
    REQUIRE(graphs.size() == 2);
    CHECK(graphs[0].dynamic);
    CHECK(!graphs[1].dynamic);
    for (const cudnn_stand_in::Graph& graph : graphs) CHECK(graph.engine == 6);
    graphs.clear();
    check(p, DType::f16, "attention by cuDNN;", "attention_grad by products;");
    CHECK(graphs.size() == 1);
    for (const DType dtype : {DType::f32, DType::f64})
      check(p, dtype, "attention by products;", "attention_grad by products;");
    CHECK(graphs.size() == 1);
  }
}

TEST_CASE("what cuDNN has no kernel for does not go there", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  constexpr auto lower = CausalVariant::lower_right;
  const std::vector<Problem> problems = {
      {2, 2, 2, 70, 65, 12, 16},  // heads that begin between 16 bytes
      {2, 2, 2, 70, 65, 16, 20},
      {2, 2, 2, 70, 65, 8, 8, Layout::transposed},
      {2, 2, 2, 70, 65, 8, 8, Layout::broadcast},
      {2, 2, 2, 90, 70, 8, 8, Layout::contiguous, true, lower},  // queries without a key
      {2, 2, 2, 70, 65, 8, 8, Layout::contiguous, false, lower, Mask::allowed},
      {2, 2, 2, 70, 65, 8, 8, Layout::contiguous, false, lower, Mask::added},
      {3, 2, 2, 70, 65, 8, 8, Layout::contiguous, false, lower, Mask::none, true},
      {2, 2, 2, 70, 65, 8, 8, Layout::contiguous, false, lower, Mask::none, false, 0.3},
  };
  graphs.clear();
  for (const Problem& p : problems)
    for (const DType dtype : {DType::f16, DType::bf16})
      check(p, dtype, "attention by products;", "attention_grad by products;");
  CHECK(graphs.empty());
  // Nor what has no engine, of which it is asked once for each kind of call.
  const Offered none(std::vector<cudnn_stand_in::Engine>{{5, {cudnn::kNondeterministic}}});
  cudnn_stand_in::heuristics_asked = 0;
  for (int round = 0; round < 2; ++round)
    check({2, 2, 2, 70, 65, 8, 8}, DType::bf16, "attention by products;", "attention_grad by products;");
  CHECK(graphs.empty());
  CHECK(cudnn_stand_in::heuristics_asked == 4);  // two heuristics, forward and backward
}

TEST_CASE("calls of attention that differ in sizes alone share kernels of cuDNN", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  const auto forward = [](std::int64_t batch, std::int64_t queries, std::int64_t size, bool causal, bool rows = false) {
    TestTensor q(DType::bf16, rows ? Shape{batch, queries, 2, size} : Shape{batch, 2, queries, size}),
        k = q, v = q, out(DType::bf16, {batch, 2, queries, size}), lse(DType::f32, {batch, 2, queries});
    AttentionArgs args = plain(q.in(), k.in(), v.in(), out, lse, 1, causal);
    for (In* in : {&args.q, &args.k, &args.v})
      if (rows) std::swap(in->view.shape[1], in->view.shape[2]), std::swap(in->view.strides[1], in->view.strides[2]);
    run(args);
  };
  graphs.clear(), cudnn_stand_in::kernel_caches_made = 0;
  forward(1, 70, 8, true), forward(2, 70, 8, true), forward(1, 99, 8, true), forward(1, 70, 8, true);
  CHECK(cudnn_stand_in::kernel_caches_made == 1);
  forward(1, 70, 16, true);
  CHECK(cudnn_stand_in::kernel_caches_made == 2);
  forward(1, 70, 8, false);
  CHECK(cudnn_stand_in::kernel_caches_made == 3);
  forward(1, 70, 8, false, true);  // [B, T, H, D]
  CHECK(cudnn_stand_in::kernel_caches_made == 4);
  CHECK(graphs.size() == 7);
  // A plan weighs as much as those of five convolutions; kernels outlive the plans that go.
  const std::size_t before = std::exchange(kernels::cuda::most_cudnn_plans, 0);
  const auto asked = [&](std::int64_t queries) {
    cudnn_stand_in::heuristics_asked = 0;
    forward(1, queries, 8, true);
    return cudnn_stand_in::heuristics_asked;
  };
  asked(69);
  kernels::cuda::most_cudnn_plans = 10;
  cudnn_stand_in::kernel_caches_made = 0;
  CHECK(asked(71) == 1);
  CHECK(asked(69) == 0);
  CHECK(asked(72) == 1);  // full
  CHECK(asked(69) == 1);
  CHECK(asked(72) == 0);
  CHECK(cudnn_stand_in::kernel_caches_made == 0);
  kernels::cuda::most_cudnn_plans = before;
}

TEST_CASE("gradients of attention whose slopes are too many go to cuDNN in parts", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  const std::int64_t before = kernels::cuda::most_slope_bytes;
  const auto parts = [&](const Problem& p, std::int64_t bytes, int expected) {
    kernels::cuda::most_slope_bytes = bytes;
    graphs.clear();
    std::string way;
    for (int n = 0; n < expected; ++n) way += "attention_grad by cuDNN;";
    check(p, DType::bf16, "attention by cuDNN;", expected ? way : "attention_grad by products;");
    CHECK(graphs.size() == static_cast<std::size_t>(expected) + 1);
    kernels::cuda::most_slope_bytes = before;
  };
  // A head's slopes are 128 x 128 x 2 bytes.
  constexpr std::int64_t kHead = 1 << 15;
  const Problem alike{6, 2, 2, 70, 65, 8, 16, Layout::contiguous, true};
  parts(alike, 12 * kHead, 1);
  parts(alike, 12 * kHead - 1, 2);  // three sequences each
  parts(alike, 5 * kHead, 3);       // two each: parts are alike
  parts(alike, 2 * kHead, 6);
  parts(alike, kHead, 12);
  parts(alike, kHead - 1, 0);
  // Of six heads in three groups, with the gradients of each of a group's keys and values beside the slopes.
  const Problem groups{2, 6, 3, 70, 65, 8, 16, Layout::contiguous, false};
  constexpr std::int64_t kGroup = 2 * (kHead + 128 * (8 + 16) * 2);
  parts(groups, 3 * kGroup, 2);
  parts(groups, 2 * kGroup, 6);
  parts(groups, kGroup - 1, 0);
}

TEST_CASE("gradients of attention stay with products where cuDNN's have no fixed order", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  for (const auto& [major, way] : {std::pair(10, "attention_grad by products;"),
                                   {11, "attention_grad by products;"},
                                   {12, "attention_grad by cuDNN;"},
                                   {8, "attention_grad by cuDNN;"}}) {
    const int before = std::exchange(emulation::compute_capability_major, major);
    check({1, 2, 2, 70, 65, 8, 8}, DType::bf16, "attention by cuDNN;", way);
    emulation::compute_capability_major = before;
  }
}

// Keys of a cache that grows: the strides stay. Heads of a wider array: the sizes stay.
TEST_CASE("a plan of attention by cuDNN is for its sizes and strides", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  constexpr std::int64_t kHeads = 2, kQueries = 66, kMost = 80, kSize = 8;
  for (const auto& [keys, heads] : {std::pair(std::int64_t{66}, kHeads), {70, kHeads}, {70, 3}, {80, kHeads}}) {
    CAPTURE(keys, heads);
    TestTensor q(DType::bf16, {2, heads, kQueries, kSize}), k(DType::bf16, {2, heads, kMost, kSize}),
        v = k, out(DType::bf16, {2, kHeads, kQueries, kSize}), lse(DType::f32, {2, kHeads, kQueries});
    q.fill_random(1, -1, 1), k.fill_random(2, -1, 1), v.fill_random(3, -1, 1);
    AttentionArgs args = plain(q.in(), k.in(), v.in(), out, lse, 0.4);
    if (heads == 3) {  // every second of them, as many as there are
      for (In* in : {&args.q, &args.k, &args.v}) in->view.strides[1] *= 2;
    }
    for (In* in : {&args.q, &args.k, &args.v}) in->view.shape[1] = kHeads;
    for (In* in : {&args.k, &args.v}) in->view.shape[2] = keys;
    graphs.clear();
    check_parity(compare_with_host(args, {&q, &k, &v, &out, &lse}, 16, 0.05), cat(keys, " keys, ", heads, " heads"));
    CHECK(graphs.size() == 1);
  }
}

TEST_CASE("a gradient of attention whose dout lies otherwise goes by products", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  const auto way = [](Layout layout) {
    TestTensor q(DType::bf16, {1, 2, 66, 8}), k = q, v = q, out = q, dq = q, dk = q, dv = q,
                                              dout(DType::bf16, q.shape(), layout), lse(DType::f32, {1, 2, 66});
    trace::start();
    run(gradient(plain(q.in(), k.in(), v.in(), out, lse, 1), dout.in(), dq, dk, dv));
    return way_of_trace();
  };
  CHECK(way(Layout::contiguous) == "attention_grad by cuDNN;");
  CHECK(way(Layout::transposed) == "attention_grad by products;");
  CHECK(way(Layout::broadcast) == "attention_grad by products;");
}

// Queries, keys and values of one projection, [B, T, 3, H, D], as views: what a transformer trains with.
TEST_CASE("gradients of attention by cuDNN are of arrays as they lie", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  constexpr std::int64_t kBatch = 2, kHeads = 4, kRows = 65, kSize = 16;
  const Shape packed{kBatch, kRows, 3, kHeads, kSize}, rows{kBatch, kRows, kHeads, kSize},
      heads{kBatch, kHeads, kRows, kSize};
  TestTensor qkv(DType::bf16, packed), out(DType::bf16, heads), lse(DType::f32, {kBatch, kHeads, kRows}),
      by_rows(DType::bf16, rows), by_heads(DType::bf16, heads), dq(DType::bf16, heads), dk = dq, dv = dq;
  qkv.fill_random(1, -1, 1), by_rows.fill_random(2, -1, 1), by_heads.fill_random(3, -1, 1);
  const auto view_of_heads = [](const TestTensor& t, std::int64_t part, std::int64_t parts) {
    In in = t.in();
    in.view.data = static_cast<std::byte*>(in.view.data) + 2 * part * kHeads * kSize;
    const std::int64_t row = parts * kHeads * kSize;
    in.view.shape = {kBatch, kHeads, kRows, kSize};
    in.view.strides = {kRows * row, kSize, row, 1};
    return in;
  };
  const std::int64_t before = kernels::cuda::most_slope_bytes;
  AttentionArgs args =
      plain(view_of_heads(qkv, 0, 3), view_of_heads(qkv, 1, 3), view_of_heads(qkv, 2, 3), out, lse, 0.4, true);
  check_parity(compare_with_host(args, {&qkv, &out, &lse}, 16, 0.05), "forward");
  AttentionGradArgs grad = gradient(args, view_of_heads(by_rows, 0, 1), dq, dk, dv);
  for (const std::int64_t bytes : {before, std::int64_t{1} << 17, std::int64_t{1} << 16}) {
    kernels::cuda::most_slope_bytes = bytes;  // whole; a sequence at a time; two heads of one
    for (const bool in_rows : {true, false}) {
      CAPTURE(bytes, in_rows);
      grad.dout = in_rows ? view_of_heads(by_rows, 0, 1) : by_heads.in();
      graphs.clear();
      check_parity(compare_with_host(grad, {&qkv, &by_rows, &by_heads, &out, &lse, &dq, &dk, &dv}, 32, 0.02),
                   "gradient");
      CHECK(graphs.size() == (bytes == before ? 1U : bytes == std::int64_t{1} << 17 ? 2U : 4U));
    }
    kernels::cuda::most_slope_bytes = before;
  }
}

TEST_CASE("few queries do not go to cuDNN, whose plans are for their keys", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  const auto forward = [](std::int64_t queries) {
    TestTensor q(DType::bf16, {1, 16, queries, 8}), k(DType::bf16, {1, 1, 300, 8}), v = k, out = q,
                                                                                    lse(DType::f32, {1, 16, queries});
    graphs.clear();
    run(plain(q.in(), k.in(), v.in(), out, lse, 1));
    return graphs.size();
  };
  CHECK(forward(1) == 0);
  CHECK(forward(15) == 0);
  CHECK(forward(16) == 1);
}

TEST_CASE("that there is no memory for a plan of cuDNN is an error, and not kept", "[attention][ways][cudnn]") {
  const Offered engines(std::vector<cudnn_stand_in::Engine>{{6, {cudnn::kTensorCore}, 256, cudnn::kNoDeviceMemory},
                                                            {7, {cudnn::kTensorCore}}});
  TestTensor q(DType::bf16, {1, 2, 70, 8}), k = q, v = q, out = q, lse(DType::f32, {1, 2, 70});
  const AttentionArgs args = plain(q.in(), k.in(), v.in(), out, lse, 1);
  CHECK_THROWS_WITH(run(args), Catch::Matchers::Contains("[attention] expected success of cudnnBackendFinalize"));
  cudnn_stand_in::graph_engines()[0].status_of_plan = cudnn::kSuccess;
  graphs.clear();
  run(args);
  REQUIRE(graphs.size() == 1);
  CHECK(graphs[0].engine == 6);
}

TEST_CASE("attention does not go to a cuDNN that is too old for it", "[attention][ways][cudnn]") {
  const Offered engines(kEngines);
  for (const auto& [version, by] : {std::pair(std::size_t{91501}, "products;"), {91600, "cuDNN;"}}) {
    const std::size_t before = std::exchange(cudnn_stand_in::version, version);
    check({1, 2, 2, 70, 65, 8, 8}, DType::bf16, cat("attention by ", by), cat("attention_grad by ", by));
    cudnn_stand_in::version = before;
  }
}
