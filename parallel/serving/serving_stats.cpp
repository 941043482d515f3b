#include "lockstep/parallel/serving/serving_stats.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/serving/prometheus_text.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {

using detail::PrometheusText;

std::span<const double> Histogram::seconds() {
  static constexpr std::array kBounds{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3,
                                      0.1,   0.25,   0.5,    1.0,    2.5,  5.0,    10.0, 25.0,  50.0,  100.0};
  return kBounds;
}
std::span<const double> Histogram::samples() {
  static constexpr std::array kBounds{1.0,   2.0,   4.0,   8.0,    16.0,   32.0,  64.0,
                                      128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0};
  return kBounds;
}

void Histogram::add(double value) {
  ++counts[static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  ++count;
  sum += value;
}

double Histogram::quantile(double share) const {
  const double wanted = std::clamp(share, 0.0, 1.0) * static_cast<double>(count);
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0 && below + here >= wanted) {
      const double lower = i == 0 ? 0 : bounds[i - 1];
      return lower + (bounds[i] - lower) * (wanted - below) / here;
    }
    below += here;
  }
  return count == 0 || bounds.empty() ? 0 : bounds.back();
}

std::string_view to_string(ReplicaState state) {
  switch (state) {
    case ReplicaState::serving:
      return "serving";
    case ReplicaState::hung:
      return "hung";
    case ReplicaState::lost:
      return "lost";
  }
  return "?";
}

namespace {

using Pools = std::span<const std::pair<std::string, ReplicaPoolStats>>;

std::string label(const std::string& pool) { return PrometheusText::label("pool", pool); }

struct Count {
  const char* label;
  std::uint64_t ReplicaPoolStats::*value;
};

}  // namespace

std::string to_prometheus(Pools pools) {
  PrometheusText text("lockstep_pool_");
  const auto counts = [&](const char* name, const char* type, const char* help, const char* of,
                          std::initializer_list<Count> values) {
    text.metric(name, type, help);
    for (const auto& [pool, stats] : pools)
      for (const Count& count : values)
        text.sample(*of ? cat(label(pool), ",", of, "=\"", count.label, "\"") : label(pool),
                    static_cast<double>(stats.*count.value));
  };
  using S = ReplicaPoolStats;
  counts("requests_total", "counter", "Requests that have ended, by how.", "outcome",
         {{"answered", &S::answered},
          {"failed", &S::failed},
          {"cancelled", &S::cancelled},
          {"late", &S::late},
          {"dropped", &S::dropped},
          {"refused", &S::refused}});
  counts("requests", "gauge", "Requests that have not ended, and submitters that wait for room.", "state",
         {{"queued", &S::queued}, {"running", &S::running}, {"waiting", &S::waiting}});
  counts("moved_requests_total", "counter", "Requests that went to another replica.", "", {{"", &S::moved}});
  counts("split_batches_total", "counter", "Batches that were computed again one by one.", "", {{"", &S::split}});
  counts("updates_total", "counter", "Exchanges of weights.", "", {{"", &S::updates}});

  const auto histograms = [&](const char* name, const char* help, Histogram S::*histogram) {
    text.metric(name, "histogram", help);
    for (const auto& [pool, stats] : pools) text.histogram(label(pool), stats.*histogram);
  };
  histograms("queue_seconds", "From submit to the replica.", &S::queue_seconds);
  histograms("latency_seconds", "From submit to the answer.", &S::latency_seconds);
  histograms("batch_seconds", "Computing of a batch.", &S::batch_seconds);
  histograms("batch_samples", "Samples of a batch.", &S::batch_samples);

  const auto replicas = [&](const char* name, const char* type, const char* help, auto&& value) {
    text.metric(name, type, help);
    for (const auto& [pool, stats] : pools)
      for (std::size_t i = 0; i < stats.replicas.size(); ++i)
        text.sample(cat(label(pool), ",replica=\"", i, "\",device=\"", stats.replicas[i].device, "\""),
                    value(stats.replicas[i]));
  };
  replicas("replica_up", "gauge", "Whether the replica serves.",
           [](const ReplicaStats& r) { return r.state == ReplicaState::serving ? 1.0 : 0.0; });
  replicas("replica_batches_total", "counter", "Batches.",
           [](const ReplicaStats& r) { return static_cast<double>(r.batches); });
  replicas("replica_samples_total", "counter", "Samples.",
           [](const ReplicaStats& r) { return static_cast<double>(r.samples); });
  replicas("replica_failures_total", "counter", "Batches that threw.",
           [](const ReplicaStats& r) { return static_cast<double>(r.failures); });
  replicas("replica_busy_seconds_total", "counter", "Time in batches.",
           [](const ReplicaStats& r) { return r.busy_seconds; });
  return text.take();
}

std::string to_prometheus(const ReplicaPoolStats& stats, const std::string& pool) {
  const std::pair<std::string, ReplicaPoolStats> one(pool, stats);
  return to_prometheus(Pools(&one, 1));
}

}  // namespace lockstep
