// Which checkpoint is the best, and what is better.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "lockstep/parallel/openmmlab/runner/core.h"

namespace lockstep {

Rule infer_rule(std::string_view metric) {
  // mmengine's, in lower case; and words that are too short to be looked for inside of others.
  constexpr std::array kGreater{"acc", "top", "ar@", "auc", "precision", "recall", "mdice", "miou"};
  constexpr std::array kGreaterWords{"map", "ap", "ar", "f1", "iou", "dice"};
  constexpr std::array kLess{"loss", "error"};
  std::string name(metric);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  // A word ends where no letter follows: AP and AP50, not APE.
  const auto has_word = [&](std::string_view word) {
    const auto letter = [&](std::size_t i) {
      return i < name.size() && std::isalpha(static_cast<unsigned char>(name[i])) != 0;
    };
    for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1))
      if (!(at > 0 && letter(at - 1)) && !letter(at + word.size())) return true;
    return false;
  };
  const bool greater = std::any_of(kGreater.begin(), kGreater.end(), has) ||
                       std::any_of(kGreaterWords.begin(), kGreaterWords.end(), has_word);
  const bool less = std::any_of(kLess.begin(), kLess.end(), has);
  LOCKSTEP_CHECK(greater != less, "[Runner] expected a rule for the metric '", metric,
                 "' (Rule::greater or Rule::less), got none, and its name says ", greater ? "both" : "neither");
  return greater ? Rule::greater : Rule::less;
}

const RunnerCore::Best* RunnerCore::best(std::string_view metric) const {
  const auto found = std::find_if(files_.best.begin(), files_.best.end(),
                                  [&](const Best& each) { return metric.empty() || each.metric == metric; });
  return found == files_.best.end() ? nullptr : &*found;
}
std::optional<double> RunnerCore::best_score(std::string_view metric) const {
  const Best* const found = best(metric);
  return found ? std::optional(found->score) : std::nullopt;
}
std::string RunnerCore::best_checkpoint(std::string_view metric) const {
  const Best* const found = best(metric);
  return found ? found->file : "";
}

void RunnerCore::save_best(const NamedValues& metrics) {
  const CheckpointHook& hook = options_.checkpoint;
  std::string names;
  for (const auto& item : metrics) names += cat(names.empty() ? "" : ", ", item.first);
  for (std::string metric : hook.save_best.metrics()) {
    if (metric == "auto" && !metrics.empty()) metric = metrics.begin()->first;
    LOCKSTEP_CHECK(metrics.contains(metric), "[Runner] expected save_best to be a metric out of (", names, "), got '",
                   metric, "'");
    const double score = metrics.at(metric).as_number();
    const bool greater = (hook.rule ? *hook.rule : infer_rule(metric)) == Rule::greater;
    Files files = files_;
    const auto known =
        std::find_if(files.best.begin(), files.best.end(), [&](const Best& each) { return each.metric == metric; });
    const double before = known != files.best.end() ? known->score : greater ? -HUGE_VAL : HUGE_VAL;
    if (!(greater ? score > before : score < before)) continue;  // nor where it is no number
    std::string key = metric;
    std::replace(key.begin(), key.end(), '/', '_');
    const Best best{metric, score, cat("best_", key, '_', name_of_now())};
    if (known == files.best.end()) {
      files.best.push_back(best);
    } else {
      if (known->file != best.file) files.superseded.push_back(known->file);
      *known = best;
    }
    write(best.file, std::move(files), false);
  }
}

}  // namespace lockstep
