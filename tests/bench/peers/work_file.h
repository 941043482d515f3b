// The work's file as C++ programs that are not Lockstep read it: a safetensors file.
#pragma once

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "serve.h"

namespace peers {

struct FileTensor {
  std::string dtype;  // F32, BF16, I64, …
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;
};

inline std::map<std::string, FileTensor> read_work(const std::string& folder) {
  std::ifstream file(folder + "/work.safetensors", std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  if (!file) throw std::runtime_error("expected the work's file in " + folder);
  const std::streamoff data = file.tellg();
  std::map<std::string, FileTensor> found;
  const Json table = Json::parse(header);
  for (const auto& [name, about] : table.items()) {
    if (name == "__metadata__") continue;
    const std::int64_t begin = about.at("data_offsets").at(0), end = about.at("data_offsets").at(1);
    FileTensor tensor{about.at("dtype"), about.at("shape"), std::vector<char>(static_cast<std::size_t>(end - begin))};
    file.seekg(data + begin);
    file.read(tensor.bytes.data(), end - begin);
    if (!file) throw std::runtime_error("expected the elements of " + name + " in the work's file");
    found.emplace(name, std::move(tensor));
  }
  return found;
}

}  // namespace peers
