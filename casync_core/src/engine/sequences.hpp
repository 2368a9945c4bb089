#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace casync {

/// How often names were submitted that a rank knows no more, by their hashes. All ranks count the runs of a name alike,
/// so this is never forgotten; it takes 16 to 32 bytes a name. Pure.
class Sequences {
 public:
  /// 0 for a name that was never put.
  std::uint32_t of(std::uint64_t name) const {
    if (names_.empty()) return 0;
    const std::size_t at = find(name);
    return names_[at] == 0 ? 0 : counts_[at];
  }
  void put(std::uint64_t name, std::uint32_t count) {
    if (used_ * 4 >= names_.size() * 3) grow();
    const std::size_t at = find(name);
    if (names_[at] == 0) ++used_;
    names_[at] = key_of(name);
    counts_[at] = count;
  }

 private:
  static std::uint64_t key_of(std::uint64_t name) { return name == 0 ? 1 : name; }

  /// Where the name is, or would be.
  std::size_t find(std::uint64_t name) const {
    const std::uint64_t key = key_of(name);
    std::size_t at = key & (names_.size() - 1);
    while (names_[at] != 0 && names_[at] != key) at = (at + 1) & (names_.size() - 1);
    return at;
  }
  void grow() {
    const std::vector<std::uint64_t> names = std::move(names_);
    const std::vector<std::uint32_t> counts = std::move(counts_);
    names_.assign(names.empty() ? 64 : 2 * names.size(), 0);
    counts_.assign(names_.size(), 0);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == 0) continue;
      const std::size_t at = find(names[i]);
      names_[at] = names[i];
      counts_[at] = counts[i];
    }
  }

  std::vector<std::uint64_t> names_;  // 0: the place is free
  std::vector<std::uint32_t> counts_;
  std::size_t used_ = 0;
};

}  // namespace casync
