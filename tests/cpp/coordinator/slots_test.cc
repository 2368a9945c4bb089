// The slots of the global coordinator: a slot's links share no end, it is as large as can be, and everything goes.
#include "coordinator/slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace casync {
namespace {

/// All links that could be granted now, by the rules as the paper and the header have them, from a book of its own.
class Book {
 public:
  explicit Book(Rank members) : members_(members) {}

  void ask(Link link) { ++asked_[key(link)]; }
  void grant(Link link) {
    --asked_[key(link)];
    ++granted_[key(link)];
  }
  void left(Link link) { --granted_[key(link)]; }
  int asked(Link link) const { return count(asked_, link); }
  int granted(Link link) const { return count(granted_, link); }
  int sending(Rank rank) const {
    int all = 0;
    for (Rank to = 0; to < members_; ++to) all += granted({rank, to});
    return all;
  }
  int getting(Rank rank) const {
    int all = 0;
    for (Rank from = 0; from < members_; ++from) all += granted({from, rank});
    return all;
  }
  bool may_go(Link link) const {
    if (asked(link) == 0) return false;
    if (sending(link.from) == 0) return getting(link.to) == 0;
    return sending(link.from) < 2 && getting(link.to) < 2;
  }
  /// The most links that can go together: sender by sender, for every set of receivers that are taken.
  std::size_t most() const {
    std::vector<std::size_t> best(std::size_t{1} << members_, 0);
    for (Rank from = 0; from < members_; ++from) {
      std::vector<std::size_t> with = best;
      for (Rank to = 0; to < members_; ++to) {
        if (!may_go({from, to})) continue;
        for (std::size_t free = 0; free < best.size(); ++free) {
          const std::size_t bit = std::size_t{1} << to;
          if ((free & bit) != 0) with[free] = std::max(with[free], 1 + best[free & ~bit]);
        }
      }
      best = std::move(with);
    }
    return best.back();
  }
  std::vector<Link> all_granted() const {
    std::vector<Link> all;
    for (const auto& [link, count] : granted_) {
      for (int i = 0; i < count; ++i) all.push_back({link.first, link.second});
    }
    return all;
  }
  bool anything_asked() const {
    return std::ranges::any_of(asked_, [](const auto& entry) { return entry.second > 0; });
  }

 private:
  using Counts = std::map<std::pair<Rank, Rank>, int>;
  static std::pair<Rank, Rank> key(Link link) { return {link.from, link.to}; }
  static int count(const Counts& counts, Link link) {
    const auto at = counts.find(key(link));
    return at == counts.end() ? 0 : at->second;
  }
  Rank members_;
  Counts asked_;
  Counts granted_;
};

class Random {
 public:
  explicit Random(std::uint32_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  Link link(Rank members) {
    const Rank from = below(members);
    return {from, static_cast<Rank>((from + 1 + below(members - 1)) % members)};
  }

 private:
  std::mt19937 random_;
};

class SlotsOfAWorld : public testing::TestWithParam<Rank> {};

TEST_P(SlotsOfAWorld, ShareNoEndAreAsLargeAsCanBeAndLeaveNothingBehind) {
  const Rank members = GetParam();
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    Slots slots(members);
    Book book(members);
    const int most_asks = 20 + static_cast<int>(random.below(100));
    int asks = 0;
    while (asks < most_asks || book.anything_asked()) {
      for (std::uint32_t i = random.below(4); i > 0 && asks < most_asks; --i, ++asks) {
        const Link link = random.link(members);
        slots.ask(link);
        book.ask(link);
      }
      const std::size_t expected = book.most();
      const std::vector<Link> slot = slots.next();
      std::set<Rank> senders;
      std::set<Rank> receivers;
      for (const Link link : slot) {
        ASSERT_TRUE(senders.insert(link.from).second) << "rank " << link.from << " sends twice in one slot";
        ASSERT_TRUE(receivers.insert(link.to).second) << "rank " << link.to << " receives twice in one slot";
        ASSERT_TRUE(book.may_go(link)) << link.from << " to " << link.to;
      }
      ASSERT_EQ(slot.size(), expected) << "seed " << seed;
      for (const Link link : slot) book.grant(link);
      std::vector<Link> under_way = book.all_granted();
      ASSERT_TRUE(!under_way.empty() || !book.anything_asked()) << "batches wait and nothing is on its way";
      if (under_way.empty()) continue;
      const Link link = under_way[random.below(static_cast<std::uint32_t>(under_way.size()))];
      ASSERT_TRUE(slots.left(link));
      book.left(link);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, SlotsOfAWorld, testing::Range(Rank{2}, Rank{10}));

TEST(Slots, GrantNothingUnasked) {
  Slots slots(4);
  EXPECT_FALSE(slots.due());
  EXPECT_TRUE(slots.next().empty());
  EXPECT_FALSE(slots.left({0, 1}));
}

/// Everybody has something for everybody: each slot keeps all links busy, although a bad choice would leave a rank out
/// (0 to 1, 1 to 2 and 2 to 0 leave nobody for rank 3).
TEST(Slots, LeaveNoRankOut) {
  for (const Rank members : {2U, 3U, 4U, 7U}) {
    Slots slots(members);
    for (Rank step = 1; step < members; ++step) {
      for (Rank from = 0; from < members; ++from) slots.ask({from, (from + step) % members});
    }
    for (Rank step = 1; step < members; ++step) {
      const std::vector<Link> slot = slots.next();
      EXPECT_EQ(slot.size(), members) << "slot " << step << " of " << members << " ranks";
      for (const Link link : slot) EXPECT_TRUE(slots.left(link));
    }
  }
}

/// The slot after the one that is on its way is granted before that has ended: nobody waits for a message in between.
TEST(Slots, AreGrantedOneAhead) {
  Slots slots(2);
  for (int i = 0; i < 3; ++i) slots.ask({0, 1});
  EXPECT_EQ(slots.next().size(), 1U);
  EXPECT_TRUE(slots.due());
  EXPECT_EQ(slots.next().size(), 1U);
  EXPECT_TRUE(slots.next().empty());
  EXPECT_TRUE(slots.left({0, 1}));
  EXPECT_EQ(slots.next().size(), 1U);
}

TEST(Slots, ASenderThatRestsWaitsForAReceiverThatIsBusy) {
  Slots slots(3);
  slots.ask({0, 2});
  ASSERT_EQ(slots.next().size(), 1U);
  slots.ask({1, 2});
  EXPECT_TRUE(slots.next().empty()) << "it would start at once, beside the batch of rank 0";
  EXPECT_TRUE(slots.left({0, 2}));
  EXPECT_EQ(slots.next(), (std::vector<Link>{{1, 2}}));
}

TEST(Slots, WhatHasWaitedLongestGoesFirst) {
  Slots slots(3);
  slots.ask({1, 2});
  slots.ask({0, 2});
  slots.ask({0, 2});
  EXPECT_EQ(slots.next(), (std::vector<Link>{{1, 2}}));
}

TEST(Slots, WhatWentUnaskedCounts) {
  Slots slots(3);
  EXPECT_TRUE(slots.opened({0, 1}));
  EXPECT_FALSE(slots.opened({0, 1})) << "it has one on its way";
  slots.ask({2, 1});
  EXPECT_TRUE(slots.next().empty());
  EXPECT_TRUE(slots.left({0, 1}));
  EXPECT_EQ(slots.next(), (std::vector<Link>{{2, 1}}));
}

/// A rank may leave before it has said that its last batch left.
TEST(Slots, ARankThatIsGoneStandsInNobodysWay) {
  Slots slots(3);
  slots.ask({0, 2});
  slots.ask({0, 2});
  ASSERT_EQ(slots.next().size(), 1U);
  slots.ask({1, 2});
  slots.forget(0);
  EXPECT_EQ(slots.next(), (std::vector<Link>{{1, 2}}));
  EXPECT_FALSE(slots.left({0, 2}));
}

}  // namespace
}  // namespace casync
