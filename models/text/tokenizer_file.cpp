#include "lockstep/models/text/tokenizer_file.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/models/text/byte_level.h"
#include "lockstep/models/text/unicode.h"
#include "lockstep/runtime/error.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostNesting = 16, kMostSteps = 64, kMostGrowth = 64;

std::string shortened(const std::string& text) { return text.size() <= 200 ? text : text.substr(0, 200) + "..."; }

// A value and where it stands.
class Field {
 public:
  Field(const Json& json, std::string path, const std::string& file)
      : json_(&json), path_(std::move(path)), file_(&file) {}

  [[noreturn]] void expected(std::string_view what) const { expected(what, short_text()); }
  [[noreturn]] void expected(std::string_view what, std::string_view got) const {
    throw FormatError(*file_, 0, cat(path_, ": expected ", what, ", got ", got));
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw NotSupported(cat("[tokenizer] ", *file_, ": ", path_, ": expected ", what));
  }
  // Whose meaning is another than that of the values that are known.
  void require(bool holds, std::string_view what) const {
    if (!holds) unsupported(cat(what, ", got ", short_text()));
  }

  bool present() const { return !json_->is_null(); }
  Field at(const std::string& key) const {
    static const Json nothing;
    if (!json_->is_object()) expected("an object");
    const auto found = json_->find(key);
    return {found == json_->end() ? nothing : *found, path_.empty() ? key : cat(path_, ".", key), *file_};
  }
  void each(const std::function<void(const Field&)>& visit) const {
    if (!json_->is_array()) expected("a list");
    std::size_t i = 0;
    for (const Json& item : *json_) visit({item, cat(path_, "[", i++, "]"), *file_});
  }
  void each_member(const std::function<void(const std::string&, const Field&)>& visit) const {
    if (!json_->is_object()) expected("an object");
    for (const auto& [key, value] : json_->items())
      visit(key, {value, cat(path_, "[\"", shortened(key), "\"]"), *file_});
  }
  // The two of them, where it is a list of two strings.
  std::optional<std::pair<std::string, std::string>> pair() const {
    if (!json_->is_array()) return std::nullopt;
    if (json_->size() != 2 || !(*json_)[0].is_string() || !(*json_)[1].is_string()) expected("two strings");
    return std::pair((*json_)[0].get<std::string>(), (*json_)[1].get<std::string>());
  }

  const std::string& text() const {
    if (!json_->is_string()) expected("a string");
    return json_->get_ref<const std::string&>();
  }
  const std::string& character() const {
    const std::string& value = text();
    if (value.empty() || first_character(value).bytes != value.size()) expected("one character");
    return value;
  }
  bool flag() const {
    if (!json_->is_boolean()) expected("true or false");
    return json_->get<bool>();
  }
  bool flag_or(bool otherwise) const { return present() ? flag() : otherwise; }
  std::int64_t id() const {
    if (!json_->is_number_unsigned() || json_->get<std::uint64_t>() > 0xFFFFFFFFu) expected("an id below 2^32");
    return json_->get<std::int64_t>();
  }

  bool is_zero() const { return json_->is_number() && json_->get<double>() == 0; }
  std::size_t count() const {
    if (!json_->is_number_unsigned()) expected("a count");
    return json_->get<std::size_t>();
  }

 private:
  std::string short_text() const {
    if (const auto* text = json_->get_ptr<const std::string*>()) return cat("\"", shortened(*text), "\"");
    return json_->is_structured() ? cat("an ", json_->type_name()) : json_->dump();
  }

  const Json* json_;
  std::string path_;
  const std::string* file_;
};

// The components of a list in a list ..., from left to right.
void each_component(const Field& field, const std::string& list,
                    const std::function<void(const Field&, const std::string&)>& visit, std::size_t depth = 0) {
  if (!field.present()) return;
  const std::string& type = field.at("type").text();
  if (type != "Sequence") return visit(field, type);
  field.require(depth < kMostNesting, cat("at most ", kMostNesting, " Sequences in one another"));
  field.at(list).each([&](const Field& item) {
    if (!item.present()) item.expected("a component");
    each_component(item, list, visit, depth + 1);
  });
}

// Of a Split or Replace.
std::string plain_pattern(const Field& field) {
  const Field text = field.at("String");
  if (!text.present()) field.unsupported("{\"String\": ...}, got another pattern");
  if (text.text().empty()) text.expected("a pattern that is not empty");
  return text.text();
}

class Reader {
 public:
  Reader(const Field& root) : root_(root), model_(root.at("model")) {}

  TokenizerFile read() {
    const Field version = root_.at("version");
    version.require(!version.present() || version.text() == "1.0", "\"1.0\"");
    for (const char* key : {"truncation", "padding"}) root_.at(key).require(!root_.at(key).present(), "null");
    read_normalizer();
    read_pre_tokenizer();
    read_vocabulary();
    read_merges();
    read_options();
    read_added();
    read_post_processor();
    read_decoder();
    return std::move(file_);
  }

 private:
  void read_normalizer() {
    std::size_t growth = 1;
    each_component(root_.at("normalizer"), "normalizers", [&](const Field& field, const std::string& type) {
      if (type == "NFC") {
        file_.normalizer.push_back({NormalizerStep::nfc, "", ""});
      } else if (type == "Prepend") {
        file_.normalizer.push_back({NormalizerStep::prepend, field.at("prepend").text(), ""});
      } else if (type == "Replace") {
        file_.normalizer.push_back(
            {NormalizerStep::replace, plain_pattern(field.at("pattern")), field.at("content").text()});
        const NormalizerStep& step = file_.normalizer.back();
        growth *= std::max<std::size_t>(1, (step.content.size() + step.text.size() - 1) / step.text.size());
        field.require(growth <= kMostGrowth, cat("texts that become at most ", kMostGrowth, " times as long"));
      } else {
        field.unsupported(cat("NFC, Prepend, Replace or Sequence, got ", type));
      }
      field.require(file_.normalizer.size() <= kMostSteps, cat("at most ", kMostSteps, " steps"));
    });
  }

  static PreTokenizerStep metaspace(const Field& field) {
    PreTokenizerStep step{PreTokenizerStep::metaspace};
    step.mark = field.at("replacement").character();
    const Field scheme = field.at("prepend_scheme");
    const bool prefixed = field.at("add_prefix_space").flag_or(true);  // of older files
    const std::string name = scheme.present() ? scheme.text() : prefixed ? "always" : "never";
    if (!prefixed && name != "never") scheme.expected("\"never\", as add_prefix_space is false");
    if (name != "always" && name != "first" && name != "never") scheme.expected("always, first or never");
    step.prepend = name == "always"  ? PreTokenizerStep::always
                   : name == "first" ? PreTokenizerStep::first
                                     : PreTokenizerStep::never;
    step.cut = field.at("split").flag_or(true);
    return step;
  }

  void read_pre_tokenizer() {
    each_component(root_.at("pre_tokenizer"), "pretokenizers", [&](const Field& field, const std::string& type) {
      field.require(!file_.byte_level, "nothing after ByteLevel");
      if (type == "ByteLevel") {
        if (field.at("add_prefix_space").flag()) file_.pre_tokenizer.push_back({PreTokenizerStep::prefix_space});
        if (field.at("use_regex").flag_or(true))
          file_.pre_tokenizer.push_back({PreTokenizerStep::split, Pattern::gpt2});
        file_.byte_level = true;
      } else if (type == "Split") {
        const Field expression = field.at("pattern").at("Regex");
        if (!expression.present()) field.at("pattern").unsupported("{\"Regex\": ...}, got another pattern");
        const auto pattern = pattern_of(expression.text());
        expression.require(pattern.has_value(), "the pattern of GPT-2, Llama 3 or Qwen2");
        // The matches cover a text, so that these mean the same.
        const std::string& behavior = field.at("behavior").text();
        const bool kept = behavior == "Isolated" || (behavior == "Removed" && field.at("invert").flag());
        field.at("behavior").require(kept, "Isolated, or Removed with \"invert\": true");
        file_.pre_tokenizer.push_back({PreTokenizerStep::split, *pattern});
      } else if (type == "Metaspace") {
        file_.pre_tokenizer.push_back(metaspace(field));
      } else {
        field.unsupported(cat("ByteLevel, Split, Metaspace or Sequence, got ", type));
      }
      field.require(file_.pre_tokenizer.size() <= kMostNesting, cat("at most ", kMostNesting, " steps"));
    });
  }

  void read_vocabulary() {
    const Field type = model_.at("type");
    if (type.present() && type.text() != "BPE") type.unsupported(cat("BPE, got ", type.text()));
    std::vector<std::pair<const std::string*, std::int64_t>> tokens;
    std::int64_t end = 0;
    const Field vocabulary = model_.at("vocab");
    vocabulary.each_member([&](const std::string& token, const Field& id) {
      if (token.empty()) id.expected("a token that is not empty");
      tokens.emplace_back(&token, id.id());
      end = std::max(end, id.id() + 1);
    });
    check_end(vocabulary, end, tokens.size());
    ids_.reserve(tokens.size());
    file_.vocabulary.resize(std::size_t(end));
    for (const auto& [token, id] : tokens) {
      std::string& place = file_.vocabulary[std::size_t(id)];
      if (!place.empty())
        vocabulary.expected("ids that differ",
                            cat(id, " for \"", shortened(place), "\" and \"", shortened(*token), "\""));
      place = *token;
      ids_.emplace(*token, std::int32_t(id));
    }
  }

  // Tables are as long as the ids are large.
  static void check_end(const Field& field, std::int64_t end, std::size_t count) {
    const auto most = std::int64_t(16 * count + 65536);
    if (end > most) field.expected(cat("ids below ", most, " for ", count, " tokens"), cat(end - 1));
  }

  std::int32_t token(const Field& where, const std::string& text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) where.expected("tokens of the vocabulary", cat("\"", shortened(text), "\""));
    return found->second;
  }

  void read_merges() {
    const Field field = model_.at("merges");
    field.each([&](const Field& item) {
      std::string left, right;
      if (auto pair = item.pair()) {
        std::tie(left, right) = std::move(*pair);
      } else {
        const std::string& text = item.text();
        if (text.starts_with("#version")) return;
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
          item.expected("two tokens with one space between them");
        left = text.substr(0, space), right = text.substr(space + 1);
      }
      file_.rules.push_back({token(item, left), token(item, right), token(item, left + right)});
    });
  }

  void read_options() {
    const Field dropout = model_.at("dropout");
    dropout.require(!dropout.present() || dropout.is_zero(), "null");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Field affix = model_.at(key);
      affix.require(!affix.present() || affix.text().empty(), "null");
    }
    BytePairOptions& options = file_.options;
    options.bytes = file_.byte_level;
    options.byte_fallback = model_.at("byte_fallback").flag_or(false);
    options.fuse_unknown = model_.at("fuse_unk").flag_or(false);
    options.ignore_merges = model_.at("ignore_merges").flag_or(false);
    const Field unknown = model_.at("unk_token");
    if (unknown.present()) options.unknown = token(unknown, unknown.text());
    if (!file_.byte_level) return;
    std::size_t bytes = 0;
    for (const auto& [text, id] : ids_)
      if (const auto one = bytes_of_alphabet(text); one && one->size() == 1) ++bytes;
    model_.at("byte_fallback").require(!options.byte_fallback || bytes == 256, "false, as ByteLevel has every byte");
  }

  // They are numbered as `tokenizers` does: whatever is in the vocabulary as it is there, others from its size on.
  void read_added() {
    if (!root_.at("added_tokens").present()) return;
    std::unordered_set<std::string> patterns[2];
    auto next = std::int64_t(ids_.size());
    root_.at("added_tokens").each([&](const Field& field) {
      AddedToken token;
      token.content = field.at("content").text();
      for (const auto& [key, flag] : {std::pair("single_word", &token.single_word), std::pair("lstrip", &token.lstrip),
                                      std::pair("rstrip", &token.rstrip), std::pair("normalized", &token.normalized),
                                      std::pair("special", &token.special)})
        *flag = field.at(key).flag();
      if (token.content.empty()) return;
      const auto known = ids_.find(token.content);
      const std::int64_t id = known != ids_.end() ? known->second : next++;
      if (field.at("id").id() != id) field.at("id").expected(cat(id, " for \"", shortened(token.content), "\""));
      check_end(field.at("id"), id + 1, ids_.size() + file_.added.size() + 1);
      token.id = std::int32_t(id);
      if (known == ids_.end() && id < std::int64_t(file_.vocabulary.size()) &&
          !file_.vocabulary[std::size_t(id)].empty())
        field.at("id").expected("an id that no token of the vocabulary has");
      token.pattern = token.normalized ? normalized(file_.normalizer, token.content) : token.content;
      if (token.pattern.empty() || !patterns[token.normalized].insert(token.pattern).second)
        field.at("content").expected("a token that neither is empty nor another one once it is normalized");
      file_.added.push_back(std::move(token));
    });
  }

  void read_post_processor() {
    bool template_seen = false;
    each_component(root_.at("post_processor"), "processors", [&](const Field& field, const std::string& type) {
      if (type == "ByteLevel") return;  // is about offsets
      if (type != "TemplateProcessing") field.unsupported(cat("ByteLevel, TemplateProcessing or Sequence, got ", type));
      field.require(!template_seen, "one TemplateProcessing");
      template_seen = true;
      bool text_seen = false;
      field.at("single").each([&](const Field& piece) {
        const Field sequence = piece.at("Sequence");
        if (sequence.present()) {
          piece.require(!text_seen && sequence.at("id").text() == "A", "the sequence A once");
          text_seen = true;
          return;
        }
        const Field name = piece.at("SpecialToken").at("id");
        const Field special = field.at("special_tokens").at(name.text());
        if (!special.present()) name.expected("the name of one of special_tokens");
        special.at("ids").each([&](const Field& id) { (text_seen ? file_.suffix : file_.prefix).push_back(id.id()); });
      });
      field.at("single").require(text_seen, "the sequence A in it");
    });
  }

  void read_decoder() {
    Decoder& decoder = file_.decoder;
    decoder.spaces = !root_.at("decoder").present();
    bool fused = false, last = false;  // of what acts on tokens
    each_component(root_.at("decoder"), "decoders", [&](const Field& field, const std::string& type) {
      if (type == "Fuse") {
        fused = true;
        return;
      }
      if (type == "Strip") {
        field.require(fused && decoder.stripped.empty(), "one Strip, after Fuse");
        field.at("stop").require(field.at("stop").count() == 0, "0");
        decoder.stripped = field.at("content").character();
        decoder.strip_count = field.at("start").count();
        return;
      }
      field.require(!fused && !last,
                    cat("nothing but Fuse and Strip after ByteLevel, ByteFallback or Fuse, got ", type));
      field.require(decoder.steps.size() < kMostNesting, cat("at most ", kMostNesting, " steps"));
      if (type == "ByteLevel") {
        decoder.steps.push_back({DecoderStep::byte_level, "", ""});
        last = true;
      } else if (type == "ByteFallback") {
        decoder.steps.push_back({DecoderStep::byte_fallback, "", ""});
        last = true;
      } else if (type == "Replace") {
        decoder.steps.push_back({DecoderStep::replace, plain_pattern(field.at("pattern")), field.at("content").text()});
      } else if (type == "Metaspace") {
        const PreTokenizerStep step = metaspace(field);
        decoder.steps.push_back({DecoderStep::metaspace, step.mark, " ", step.prepend != PreTokenizerStep::never});
      } else {
        field.unsupported(cat("ByteLevel, ByteFallback, Replace, Metaspace, Fuse, Strip or Sequence, got ", type));
      }
    });
  }

  const Field root_, model_;
  TokenizerFile file_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

}  // namespace

TokenizerFile read_tokenizer(std::string_view json, const std::string& name) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::parse_error& error) {
    throw FormatError(name, std::min(std::max<std::size_t>(error.byte, 1) - 1, json.size()),
                      "expected JSON, got something else or another encoding than UTF-8");
  } catch (const Json::exception& error) {  // a number that is too large
    throw FormatError(name, 0, cat("expected JSON: ", error.what()));
  }
  return Reader(Field(root, "", name)).read();
}

}  // namespace lockstep::text
