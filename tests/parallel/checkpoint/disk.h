// A disk that can be cut off after every step and every few bytes, and says what is on it then.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/parallel/checkpoint/file_layer.h"
#include "lockstep/runtime/error.h"
#include "parallel/support.h"
#include "support/temporary_folder.h"

namespace parallel_test {

// What stays of a disk: after a kill all that was done; after a power cut what was synced, while names got there early
// (with files that are empty) or late (only those that were synced).
enum class Left { killed, early_names, late_names };

// The system's, after what the test does before each step.
class Watched : public detail::FileLayer {
 public:
  std::function<void(const std::string& what, const std::string& path)> before = [](auto&, auto&) {};

  void make_folder(const std::string& path) override {
    before("make_folder", path);
    FileLayer::make_folder(path);
  }
  int create(const std::string& path) override {
    before("create", path);
    return FileLayer::create(path);
  }
  void write(int file, const std::string& path, const void* data, std::size_t bytes) override {
    before("write", path);
    FileLayer::write(file, path, data, bytes);
  }
  void sync(int file, const std::string& path) override {
    before("sync", path);
    FileLayer::sync(file, path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before("rename", from);
    FileLayer::rename(from, to);
  }
  void sync_folder(const std::string& path) override {
    before("sync_folder", path);
    FileLayer::sync_folder(path);
  }
};

// Does on the real folder what it is asked to, until `limit` steps are over; from then on everything fails. Beside
// that it remembers what is safely on the disk.
class Disk : public detail::FileLayer {
 public:
  static constexpr std::size_t kChunk = 48;  // bytes of a step

  explicit Disk(std::string root, int limit = 1 << 30) : root_(std::move(root)), limit_(limit) { adopt(root_, top_); }
  int steps() const { return steps_; }

  // Puts into `folder`, which is empty, what is left.
  void leave(const std::string& folder, Left left) const { write_out(top_, folder, left); }

  void make_folder(const std::string& path) override {
    const auto lock = step();
    FileLayer::make_folder(path);
    at(parent(path)).names[name(path)] = std::make_shared<Node>(Node{.folder = true});
  }
  int create(const std::string& path) override {
    const auto lock = step();
    const int file = FileLayer::create(path);
    at(parent(path)).names[name(path)] = std::make_shared<Node>();
    return file;
  }
  void write(int file, const std::string& path, const void* data, std::size_t bytes) override {
    for (std::size_t done = 0; done < bytes; done += kChunk) {
      const auto lock = step();
      const std::size_t count = std::min(kChunk, bytes - done);
      FileLayer::write(file, path, static_cast<const char*>(data) + done, count);
      at(path).text.append(static_cast<const char*>(data) + done, count);
    }
  }
  void sync(int, const std::string& path) override {
    const auto lock = step();
    at(path).safe_text = at(path).text;
  }
  void rename(const std::string& from, const std::string& to) override {
    const auto lock = step();
    FileLayer::rename(from, to);
    auto& names = at(parent(from)).names;
    const auto moved = names.extract(name(from));
    at(parent(to)).names[name(to)] = moved.mapped();
  }
  void sync_folder(const std::string& path) override {
    const auto lock = step();
    at(path).safe_names = at(path).names;
  }
  void remove(const std::string& path) override {
    const auto lock = step();
    FileLayer::remove(path);
    at(parent(path)).names.erase(name(path));
  }

 private:
  struct Node {
    bool folder = false;
    std::string text = {}, safe_text = {};
    std::map<std::string, std::shared_ptr<Node>> names = {}, safe_names = {};
  };

  // Nobody else comes in between.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> step() {
    std::unique_lock lock(mutex_);
    if (steps_ >= limit_) throw Error("the process is dead");
    ++steps_;
    return lock;
  }
  static std::string parent(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }
  static std::string name(const std::string& path) { return std::filesystem::path(path).filename().string(); }
  Node& at(const std::string& path) {
    Node* node = &top_;
    if (path != root_)
      for (const auto& part : std::filesystem::path(path.substr(root_.size() + 1)))
        node = node->names.at(part.string()).get();
    return *node;
  }
  // What is there already is on the disk.
  static void adopt(const std::filesystem::path& path, Node& node) {
    node.folder = true;
    for (const auto& each : std::filesystem::directory_iterator(path)) {
      auto child = std::make_shared<Node>();
      if (each.is_directory()) {
        adopt(each.path(), *child);
      } else {
        std::ifstream file(each.path(), std::ios::binary);
        child->text.assign(std::istreambuf_iterator<char>(file), {});
        child->safe_text = child->text;
      }
      node.names[each.path().filename().string()] = std::move(child);
    }
    node.safe_names = node.names;
  }
  static void write_out(const Node& node, const std::filesystem::path& folder, Left left) {
    for (const auto& [name, child] : left == Left::late_names ? node.safe_names : node.names) {
      if (child->folder) {
        std::filesystem::create_directory(folder / name);
        write_out(*child, folder / name, left);
      } else {
        std::ofstream(folder / name, std::ios::binary) << (left == Left::killed ? child->text : child->safe_text);
      }
    }
  }

  const std::string root_;
  const int limit_;
  std::atomic<int> steps_{0};
  std::recursive_mutex mutex_;
  Node top_;
};

}  // namespace parallel_test
