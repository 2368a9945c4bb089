// Random orders of sends and accepts, on devices that work off one group after the other: none may wait for ever.
#include "transport/nccl/launch_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "casync/error.hpp"

namespace casync::nccl {
namespace {

using Word = LaunchOrder::Word;

std::byte somewhere;

LaunchOrder::Body body(std::uint64_t id, std::size_t bytes = 10) { return {&somewhere, bytes, id}; }

TEST(LaunchOrder, SaysNothingOfABodyThatIsNotAccepted) {
  LaunchOrder receiver(1, 2);
  receiver.hear(0, Word::offer, 10);
  EXPECT_TRUE(receiver.messages().empty());
  EXPECT_TRUE(receiver.next_group().empty());
  receiver.accept(0, body(1));
  ASSERT_EQ(receiver.messages().size(), 1U);
  EXPECT_TRUE(receiver.next_group().empty()) << "its time is not known";
}

TEST(LaunchOrder, LeavesWhatIsNotWantedOrEmpty) {
  LaunchOrder sender(0, 2), receiver(1, 2);
  sender.send(1, body(1));
  sender.send(1, body(2, 0));
  receiver.accept(0, {.id = 3});
  receiver.accept(0, body(4, 0));
  for (const auto& message : sender.messages()) receiver.hear(0, message.word, message.value);
  for (const auto& message : receiver.messages()) sender.hear(1, message.word, message.value);
  const auto left = sender.unmoved(), not_wanted = receiver.unmoved();
  ASSERT_EQ(left.size(), 2U);
  ASSERT_EQ(not_wanted.size(), 2U);
  EXPECT_EQ(left[1].body.id, 2U);
  EXPECT_EQ(not_wanted[0].body.id, 3U);
  EXPECT_TRUE(sender.next_group().empty());
  EXPECT_TRUE(receiver.next_group().empty());
}

TEST(LaunchOrder, RefusesWhatAPeerCannotMean) {
  LaunchOrder order(0, 2);
  EXPECT_THROW(order.hear(1, Word::take, 1), CorruptPayload);
  EXPECT_THROW(order.hear(1, Word::leave, 0), CorruptPayload);
  EXPECT_THROW(order.hear(1, Word::go, 1), CorruptPayload);
  order.accept(1, body(1, 10));
  EXPECT_THROW(order.hear(1, Word::offer, 11), CorruptPayload);
}

/// Ranks whose messages, sends, accepts, launches and devices come on in any order.
class Simulation {
 public:
  Simulation(Rank size, int bodies, unsigned seed) : size_(size), random_(seed), sends_(size), accepts_(size) {
    for (Rank rank = 0; rank < size; ++rank) ranks_.push_back({LaunchOrder(rank, size), {}, {}});
    for (int i = 0; i < bodies; ++i) {
      const Rank from = any(size);
      const Rank to = (from + 1 + any(size - 1)) % size;
      const std::size_t bytes = any(8) == 0 ? 0 : 1 + any(1000);
      sends_[from].push_back({to, body(static_cast<std::uint64_t>(i), bytes)});
      auto accepted = body(static_cast<std::uint64_t>(i), bytes);
      if (any(8) == 0) accepted.memory = nullptr;
      accepts_[to].push_back({from, accepted});
    }
    for (Rank rank = 0; rank < size; ++rank) {  // in another order than they are sent, but for those of one pair
      shuffle(sends_[rank]);
      shuffle(accepts_[rank]);
    }
  }

  /// Until nothing moves any more. What is not over then never will be.
  void run() {
    while (true) {
      std::vector<int> kinds{0, 1, 2, 3, 4};
      std::shuffle(kinds.begin(), kinds.end(), random_);
      const bool has_moved = std::ranges::any_of(kinds, [&](int kind) { return step(kind); });
      if (!has_moved) return;
    }
  }

  /// Why it did not end well; empty: it did.
  std::string complaint() const {
    for (Rank rank = 0; rank < size_; ++rank) {
      if (!ranks_[rank].device.empty()) return "the device of rank " + std::to_string(rank) + " waits for ever";
      if (!sends_[rank].empty() || !accepts_[rank].empty()) return "the test did not do all that it wanted";
    }
    for (const auto& [id, ends] : ends_) {
      if (ends != 2) return "body " + std::to_string(id) + " is over on " + std::to_string(ends) + " ranks";
    }
    return wrong_;
  }
  std::size_t over() const { return ends_.size(); }

 private:
  struct Group {
    std::vector<LaunchOrder::Exchange> parts;
    bool is_connected = false;
  };
  struct Member {
    LaunchOrder order;
    std::map<Rank, std::deque<LaunchOrder::Message>> mail;  // from others, and not heard
    std::deque<Group> device;
  };
  using Plan = std::deque<std::pair<Rank, LaunchOrder::Body>>;

  Rank any(std::size_t below) { return static_cast<Rank>(random_() % below); }

  /// Keeps the order of each peer.
  void shuffle(Plan& plan) {
    std::map<Rank, Plan> by_peer;
    std::vector<Rank> peers;
    for (const auto& item : plan) {
      by_peer[item.first].push_back(item);
      peers.push_back(item.first);
    }
    std::shuffle(peers.begin(), peers.end(), random_);
    plan.clear();
    for (const Rank peer : peers) {
      plan.push_back(by_peer[peer].front());
      by_peer[peer].pop_front();
    }
  }

  bool step(int kind) {
    const Rank first = any(size_);
    for (Rank i = 0; i < size_; ++i) {
      const Rank rank = (first + i) % size_;
      const bool has_moved = kind == 0   ? send(rank)
                             : kind == 1 ? accept(rank)
                             : kind == 2 ? hear(rank)
                             : kind == 3 ? launch(rank)
                                         : work(rank);
      if (has_moved) return true;
    }
    return false;
  }

  void take_words(Rank rank) {
    for (const auto& message : ranks_[rank].order.messages())
      ranks_[message.peer].mail[rank].push_back({rank, message.word, message.value});
    for (const auto& exchange : ranks_[rank].order.unmoved()) ++ends_[exchange.body.id];
  }
  bool send(Rank rank) {
    if (sends_[rank].empty()) return false;
    const auto [peer, what] = sends_[rank].front();
    sends_[rank].pop_front();
    ranks_[rank].order.send(peer, what);
    take_words(rank);
    return true;
  }
  bool accept(Rank rank) {
    if (accepts_[rank].empty()) return false;
    const auto [peer, what] = accepts_[rank].front();
    accepts_[rank].pop_front();
    ranks_[rank].order.accept(peer, what);
    take_words(rank);
    return true;
  }
  bool hear(Rank rank) {
    const Rank first = any(size_);
    for (Rank i = 0; i < size_; ++i) {
      auto& mail = ranks_[rank].mail[(first + i) % size_];
      if (mail.empty()) continue;
      const auto message = mail.front();
      mail.pop_front();
      ranks_[rank].order.hear(message.peer, message.word, message.value);
      take_words(rank);
      return true;
    }
    return false;
  }
  bool launch(Rank rank) {
    const auto parts = ranks_[rank].order.next_group();
    if (parts.empty()) return false;
    if (parts.size() > LaunchOrder::kMostOfGroup) wrong_ = "a group is too large";
    std::set<std::pair<Rank, bool>> directions;
    for (const auto& part : parts) {
      if (!directions.emplace(part.peer, part.is_send).second) wrong_ = "a direction twice in a group";
    }
    ranks_[rank].device.push_back({parts});
    return true;
  }

  /// The part of another rank's first group that meets `part` of `rank`; null: its device is not so far.
  const LaunchOrder::Exchange* met_by(Rank rank, const LaunchOrder::Exchange& part) const {
    const auto& device = ranks_[part.peer].device;
    if (device.empty()) return nullptr;
    for (const auto& other : device.front().parts) {
      if (other.peer == rank && other.is_send != part.is_send) return &other;
    }
    return nullptr;
  }
  /// Moves one exchange of the device's first group, if both ends have come to it.
  bool work(Rank rank) {
    auto& device = ranks_[rank].device;
    if (device.empty()) return false;
    Group& group = device.front();
    if (!group.is_connected) {  // those that meet for the first time all at once, as NCCL does it
      for (const auto& part : group.parts) {
        if (!connected_.contains({rank, part.peer, part.is_send}) && met_by(rank, part) == nullptr) return false;
      }
      for (const auto& part : group.parts) connected_.insert({rank, part.peer, part.is_send});
      group.is_connected = true;
      return true;
    }
    for (std::size_t i = 0; i < group.parts.size(); ++i) {
      const auto part = group.parts[i];
      const auto* const other = met_by(rank, part);
      if (other == nullptr || !ranks_[part.peer].device.front().is_connected) continue;
      if (other->body.id != part.body.id || other->body.bytes != part.body.bytes) wrong_ = "bodies were mixed up";
      finish(part.peer, static_cast<std::size_t>(other - ranks_[part.peer].device.front().parts.data()));
      finish(rank, i);
      return true;
    }
    return false;
  }
  void finish(Rank rank, std::size_t part) {
    auto& device = ranks_[rank].device;
    auto& parts = device.front().parts;
    ++ends_[parts[part].body.id];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(part));
    if (parts.empty()) device.pop_front();
  }

  Rank size_;
  std::mt19937 random_;
  std::vector<Member> ranks_;
  std::vector<Plan> sends_;
  std::vector<Plan> accepts_;
  std::set<std::tuple<Rank, Rank, bool>> connected_;
  std::map<std::uint64_t, int> ends_;
  std::string wrong_;
};

TEST(LaunchOrder, LeavesNoCircleOfDevicesThatWait) {
  constexpr int kBodies = 60;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Rank size = 2 + seed % 8;
    Simulation simulation(size, kBodies, seed);
    simulation.run();
    ASSERT_EQ(simulation.complaint(), "") << "seed " << seed << ", " << size << " ranks";
    ASSERT_EQ(simulation.over(), static_cast<std::size_t>(kBodies));
  }
}

}  // namespace
}  // namespace casync::nccl
