#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "casync/error.hpp"
#include "common/wire.hpp"

namespace casync {

/// Operations by number, as a bit vector: of gradients that are ready together the numbers lie together, and a bit for
/// each takes less than their numbers.
class OpSet {
 public:
  OpSet() = default;
  OpSet(std::initializer_list<std::uint32_t> ops) {
    for (const std::uint32_t op : ops) insert(op);
  }

  void insert(std::uint32_t op) {
    const std::uint32_t word = op / kBits;
    if (words_.empty()) first_ = word;
    if (word < first_) {
      words_.insert(words_.begin(), first_ - word, 0);
      first_ = word;
    }
    if (word - first_ >= words_.size()) words_.resize(word - first_ + 1);
    words_[word - first_] |= std::uint64_t{1} << (op % kBits);
  }
  bool empty() const { return words_.empty(); }
  /// Calls `visit` with each, in ascending order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t left = words_[i]; left != 0; left &= left - 1) {
        visit((first_ + i) * kBits + static_cast<std::uint32_t>(std::countr_zero(left)));
      }
    }
  }

  void put(ByteWriter& writer) const {
    writer.put(first_);
    writer.put(static_cast<std::uint32_t>(words_.size()));
    for (const std::uint64_t word : words_) writer.put(word);
  }
  static OpSet get(ByteReader& reader) {
    OpSet set;
    set.first_ = reader.get<std::uint32_t>();
    const auto words = reader.get<std::uint32_t>();
    if (words > reader.left() / sizeof(std::uint64_t))
      throw CorruptPayload("a control message names more operations than it has bytes");
    if (std::uint64_t{set.first_} + words > std::numeric_limits<std::uint32_t>::max() / kBits + 1)
      throw CorruptPayload("a control message names operations beyond any number");
    set.words_.resize(words);
    for (std::uint64_t& word : set.words_) word = reader.get<std::uint64_t>();
    return set;
  }

  friend bool operator==(const OpSet&, const OpSet&) = default;

 private:
  static constexpr std::uint32_t kBits = 64;
  std::uint32_t first_ = 0;  // the first word of `words_`, counted from operation 0
  std::vector<std::uint64_t> words_;
};

}  // namespace casync
