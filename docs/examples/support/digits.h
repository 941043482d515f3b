// Labelled pictures from IDX files, the format of MNIST, and batches of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/lockstep.h"

namespace example {

inline constexpr int kClasses = 10;

// An IDX file of unsigned bytes: its sizes and its elements.
struct Idx {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// Throws lockstep::FormatError when the file is not an IDX file of unsigned bytes with `rank` sizes.
inline Idx read_idx(const std::filesystem::path& path, int rank) {
  using lockstep::cat;
  const auto fail = [&](std::uint64_t offset, const std::string& message) {
    throw lockstep::FormatError(path.string(), offset, message);
  };
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);  // fails for what is no file
  std::ifstream file;
  if (!error) file.open(path, std::ios::binary);
  if (error || !file)
    throw lockstep::Error(cat(path.string(), ": expected a file that can be read, got the error '",
                              error ? error.message() : "cannot open", "'"));
  std::vector<std::uint8_t> head(4 + 4 * static_cast<std::size_t>(rank));
  const auto read = [&](std::vector<std::uint8_t>& into) {
    file.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size()));
    return static_cast<std::size_t>(file.gcount()) == into.size();
  };
  if (file_bytes < head.size() || !read(head))
    fail(file_bytes, cat("expected the ", head.size(), " bytes of an IDX header, the file ends here"));
  const auto number_at = [&](std::size_t at) {
    return std::uint32_t{head[at]} << 24 | std::uint32_t{head[at + 1]} << 16 | std::uint32_t{head[at + 2]} << 8 |
           std::uint32_t{head[at + 3]};
  };
  const std::uint32_t magic = 0x0800u + static_cast<std::uint32_t>(rank);
  if (number_at(0) != magic)
    fail(0, cat("expected the number ", magic, " of an IDX file of bytes with ", rank, " sizes, got ", number_at(0)));

  Idx idx;
  std::uint64_t count = 1;
  for (int i = 0; i < rank; ++i) {
    const std::uint64_t size = number_at(4 + 4 * static_cast<std::size_t>(i));
    idx.sizes.push_back(static_cast<std::int64_t>(size));
    if (__builtin_mul_overflow(count, size, &count)) fail(4, "expected sizes whose product fits 64 bits");
  }
  const std::uint64_t data_bytes = file_bytes - head.size();
  if (count != data_bytes)
    fail(head.size() + std::min(count, data_bytes), cat("expected ", count, " bytes of data, got ", data_bytes));
  idx.elements.resize(count);
  if (!read(idx.elements)) fail(head.size(), "expected the data, got an error of the system");
  return idx;
}

// Pictures of rows x columns bytes with a label from 0 to 9 each.
struct Digits {
  std::int64_t count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels, labels;

  Digits subset(std::span<const std::int64_t> indices) const {
    Digits part{static_cast<std::int64_t>(indices.size()), rows, columns, {}, {}};
    for (const std::int64_t index : indices) {
      const auto* picture = pixels.data() + index * rows * columns;
      part.pixels.insert(part.pixels.end(), picture, picture + rows * columns);
      part.labels.push_back(labels[static_cast<std::size_t>(index)]);
    }
    return part;
  }
};

inline Digits read_digits(const std::filesystem::path& images_path, const std::filesystem::path& labels_path) {
  using lockstep::cat;
  Idx images = read_idx(images_path, 3), labels = read_idx(labels_path, 1);
  Digits digits{images.sizes[0], images.sizes[1], images.sizes[2], std::move(images.elements),
                std::move(labels.elements)};
  if (labels.sizes[0] != digits.count)
    throw lockstep::FormatError(labels_path.string(), 4,
                                cat("expected ", digits.count, " labels, as many as images in ", images_path.string(),
                                    ", got ", labels.sizes[0]));
  if (digits.count < 2)
    throw lockstep::FormatError(images_path.string(), 4, cat("expected at least 2 images, got ", digits.count));
  if (digits.rows < 4 || digits.columns < 4 || digits.rows > 1024 || digits.columns > 1024)
    throw lockstep::FormatError(
        images_path.string(), 8,
        cat("expected images from 4 x 4 to 1024 x 1024, got ", digits.rows, " x ", digits.columns));
  for (std::size_t i = 0; i < digits.labels.size(); ++i)
    if (digits.labels[i] >= kClasses)
      throw lockstep::FormatError(
          labels_path.string(), 8 + i,
          cat("expected a label from 0 to ", kClasses - 1, ", got ", static_cast<int>(digits.labels[i])));
  return digits;
}

// 0 … count-1 in an order that depends only on the generator (std::shuffle differs between standard libraries).
inline std::vector<std::int64_t> shuffled(std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t at = random() % (i + 1);
    order[i] = order[at];
    order[at] = static_cast<std::int64_t>(i);
  }
  return order;
}

struct Split {
  Digits train, test;
};

// The sets in a folder: MNIST's train and t10k files, or one pair of files, of which a random fifth is for testing.
inline Split read_split(const std::filesystem::path& folder, std::uint64_t seed) {
  const auto pair = [&](const std::string& prefix) {
    return read_digits(folder / (prefix + "images-idx3-ubyte"), folder / (prefix + "labels-idx1-ubyte"));
  };
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored);
  };
  const bool mnist = !has("images-idx3-ubyte") && has("train-images-idx3-ubyte");
  if (mnist && has("t10k-images-idx3-ubyte")) {
    Split split{pair("train-"), pair("t10k-")};
    if (split.train.rows != split.test.rows || split.train.columns != split.test.columns)
      throw lockstep::FormatError(
          (folder / "t10k-images-idx3-ubyte").string(), 8,
          lockstep::cat("expected images of ", split.train.rows, " x ", split.train.columns,
                        " as in the training set, got ", split.test.rows, " x ", split.test.columns));
    return split;
  }
  const Digits all = pair(mnist ? "train-" : "");
  std::mt19937_64 random(seed);
  const std::vector<std::int64_t> order = shuffled(all.count, random);
  const auto tests = static_cast<std::size_t>((all.count + 4) / 5);
  const std::span indices(order);
  return {all.subset(indices.subspan(tests)), all.subset(indices.first(tests))};
}

struct Batch {
  lockstep::Tensor images, labels;  // [n, 1, rows, columns] of `dtype` from 0 to 1, [n] of i64; both on cpu
};

// `brightest` is the value that becomes 1. With a generator each picture is moved by up to a pixel in each direction:
// it is still the same digit, and the network sees more of them.
inline Batch make_batch(const Digits& digits, std::span<const std::int64_t> indices, lockstep::DType dtype,
                        int brightest, std::mt19937_64* random = nullptr) {
  const auto n = static_cast<std::int64_t>(indices.size());
  const std::int64_t rows = digits.rows, columns = digits.columns;
  const Batch batch{lockstep::empty({n, 1, rows, columns}, {.dtype = dtype}),
                    lockstep::empty({n}, {.dtype = lockstep::DType::i64})};
  const auto fill = [&](auto* out) {
    using T = std::remove_reference_t<decltype(*out)>;
    const auto draw = [&] { return random ? static_cast<std::int64_t>((*random)() % 3) - 1 : 0; };
    for (const std::int64_t index : indices) {
      const std::uint8_t* picture = digits.pixels.data() + index * rows * columns;
      const std::int64_t down = draw(), right = draw();
      for (std::int64_t y = -down; y < rows - down; ++y)
        for (std::int64_t x = -right; x < columns - right; ++x) {
          const bool inside = y >= 0 && y < rows && x >= 0 && x < columns;
          *out++ = inside ? static_cast<T>(picture[y * columns + x]) / static_cast<T>(brightest) : T{0};
        }
    }
  };
  if (dtype == lockstep::DType::f64)
    fill(batch.images.mutable_data<double>());
  else
    fill(batch.images.mutable_data<float>());
  auto* labels = batch.labels.mutable_data<std::int64_t>();
  for (const std::int64_t index : indices) *labels++ = digits.labels[static_cast<std::size_t>(index)];
  return batch;
}

}  // namespace example
