#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace casync {

/// Things by their numbers, which are given out in order and never again. Each thing stays where it is until it is
/// erased. What was erased takes a byte in the end.
template <typename Thing>
class Numbered {
 public:
  /// The number of the next thing that is added.
  std::uint32_t next() const { return next_; }
  /// Returns the number.
  std::uint32_t add(Thing thing) {
    const std::uint32_t number = next_++;
    if (number % kPage == 0) pages_.emplace_back(std::make_unique<Page>());
    pages_.back()->things[number % kPage] = std::make_unique<Thing>(std::move(thing));
    ++pages_.back()->used;
    return number;
  }
  /// Null: there is none of this number, or none any more.
  Thing* find(std::uint32_t number) { return const_cast<Thing*>(std::as_const(*this).find(number)); }
  const Thing* find(std::uint32_t number) const {
    if (number >= next_) return nullptr;
    const Page* const page = pages_[number / kPage].get();
    return page == nullptr ? nullptr : page->things[number % kPage].get();
  }
  /// It is there.
  Thing& operator[](std::uint32_t number) { return *pages_[number / kPage]->things[number % kPage]; }
  const Thing& operator[](std::uint32_t number) const { return *pages_[number / kPage]->things[number % kPage]; }
  /// It is there, and is not any more.
  void erase(std::uint32_t number) {
    std::unique_ptr<Page>& page = pages_[number / kPage];
    page->things[number % kPage] = nullptr;
    const bool is_full = number / kPage < next_ / kPage;
    if (--page->used == 0 && is_full) page = nullptr;
  }
  /// Calls `visit(number, thing)` for each, in order. `visit` adds and erases nothing.
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (std::uint32_t p = 0; p < pages_.size(); ++p) {
      if (pages_[p] == nullptr) continue;
      for (std::uint32_t i = 0; i < kPage; ++i) {
        if (Thing* const thing = pages_[p]->things[i].get()) visit(p * kPage + i, *thing);
      }
    }
  }

 private:
  static constexpr std::uint32_t kPage = 64;
  struct Page {
    std::array<std::unique_ptr<Thing>, kPage> things;
    std::uint32_t used = 0;
  };

  std::vector<std::unique_ptr<Page>> pages_;  // null: all of it was erased
  std::uint32_t next_ = 0;
};

}  // namespace casync
