// Feeds a target each file of a corpus, then changed copies of the good ones, the same in every run.
//
// usage: lockstep-fuzz safetensors|npy|tokenizer <corpus> <how many changed files>
//
// <corpus>/good/* must load, <corpus>/bad/* be malformed, <corpus>/unsupported/* be not supported; a changed file may
// be any of these, but nothing else may happen.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fuzz/targets.h"

namespace {

using Bytes = std::vector<unsigned char>;
using Target = fuzz::Outcome (*)(std::span<const unsigned char>);

struct File {
  std::string name;
  Bytes bytes;
};

std::vector<File> read_folder(const std::filesystem::path& folder) {
  std::vector<File> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.push_back({entry.path().filename().string(),
                     Bytes(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>())});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.name < b.name; });
  return files;
}

const char* word(fuzz::Outcome outcome) {
  return outcome == fuzz::Outcome::loaded      ? "loaded"
         : outcome == fuzz::Outcome::malformed ? "malformed"
                                               : "unsupported";
}

Bytes changed(const Bytes& good, std::mt19937& random) {
  static constexpr char kTelling[] = "{}[]():,\"'0129-.eEtnTFL\\u <>|=\xff\x80";
  Bytes bytes = good;
  for (unsigned edits = 1 + random() % 3; edits > 0 && !bytes.empty(); --edits) {
    // Most of what matters stands at the start.
    const std::size_t reach = random() % 4 ? std::min<std::size_t>(bytes.size(), 200) : bytes.size();
    const std::size_t at = random() % reach;
    const auto telling = static_cast<unsigned char>(kTelling[random() % (sizeof kTelling)]);
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 7) {
      case 0:
        bytes[at] = telling;
        break;
      case 1:
        bytes[at] = static_cast<unsigned char>(bytes[at] ^ (1u << random() % 8));
        break;
      case 2:
        bytes[at] = static_cast<unsigned char>(random());
        break;
      case 3:
        bytes.erase(begin,
                    begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(1 + random() % 4, bytes.size() - at)));
        break;
      case 4:
        bytes.insert(begin, telling);
        break;
      case 5:
        bytes.resize(at);
        break;
      default: {  // a piece from elsewhere in the file
        const std::size_t length = std::min<std::size_t>(1 + random() % 16, bytes.size() - at);
        const Bytes piece(begin, begin + static_cast<std::ptrdiff_t>(length));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()), piece.begin(), piece.end());
      }
    }
  }
  return bytes;
}

int run(Target target, const std::filesystem::path& corpus, int rounds) {
  int failures = 0, fed = 0;
  const auto feed = [&](const std::string& name, const Bytes& bytes, const fuzz::Outcome* expected) {
    ++fed;
    try {
      const fuzz::Outcome outcome = target(bytes);
      if (!expected || outcome == *expected) return outcome;
      std::printf("%s: expected %s, got %s\n", name.c_str(), word(*expected), word(outcome));
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", name.c_str(), error.what());
      std::ofstream out("fuzz-failure-" + std::to_string(failures), std::ios::binary);
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    ++failures;
    return fuzz::Outcome::malformed;
  };
  const std::vector<File> good = read_folder(corpus / "good");
  const std::pair<const char*, fuzz::Outcome> folders[] = {{"good", fuzz::Outcome::loaded},
                                                           {"bad", fuzz::Outcome::malformed},
                                                           {"unsupported", fuzz::Outcome::not_supported}};
  for (const auto& [folder, expected] : folders)
    for (const File& file : read_folder(corpus / folder))
      feed(std::string(folder) + "/" + file.name, file.bytes, &expected);
  int counts[3] = {};
  std::mt19937 random(1);
  for (int round = 0; round < rounds; ++round) {
    const File& file = good.at(random() % good.size());
    ++counts[static_cast<int>(
        feed("round " + std::to_string(round) + " of " + file.name, changed(file.bytes, random), nullptr))];
  }
  std::printf("%d files, %d failures; of the changed ones %d loaded, %d were not supported, %d malformed\n", fed,
              failures, counts[0], counts[1], counts[2]);
  // Changes that change nothing, or nothing but garbage, would test little.
  const bool telling = rounds == 0 || (counts[0] > rounds / 100 && counts[2] > rounds / 4);
  if (!telling) std::printf("the changes are not telling\n");
  return failures == 0 && telling ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Target> targets = {
      {"safetensors", fuzz::load_safetensors}, {"npy", fuzz::load_npy}, {"tokenizer", fuzz::load_tokenizer}};
  if (argc != 4 || targets.count(argv[1]) == 0)
    return std::fprintf(stderr, "usage: lockstep-fuzz safetensors|npy|tokenizer <corpus> <count>\n"), 2;
  try {
    return run(targets.at(argv[1]), argv[2], std::atoi(argv[3]));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "lockstep-fuzz: %s\n", error.what()), 1;
  }
}
