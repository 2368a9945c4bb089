// Runs the core's teams on the CPU, with words.hpp for CUDA's own words, and holds what they give to a plain loop over
// all threads. Prints a line for each difference, then "done".
#include "words.hpp"
// The words come first.
#include <cstdio>
#include <vector>

#include "codec/cuda/kernels/reduce.hpp"
#include "codec/cuda/kernels/team.hpp"

namespace {

using namespace casync::codec::cuda;
using Wide = WideTeam<256>;

/// The scratch memory's front, which several launches share, as on a device.
std::vector<std::int64_t> front(kGridBytes / 8);

template <typename Team, typename Work>
void launch(words::Place grid, const Work& work) {
  words::grid = grid;
  std::vector<std::thread> all;
  for (unsigned block = 0; block < grid.x * grid.y; ++block)
    all.emplace_back([&, block] {
      Turns turns(Team::kBlock);
      words::turns = &turns;
      words::block = {block % grid.x, block / grid.x};
      turns.run([&](int) { work(Team(front.data())); });
    });
  for (std::thread& one : all) one.join();
}

/// Some of each sign and magnitude, different in each round.
std::int64_t value_of(int index, int rank, int round) {
  const auto mixed = static_cast<std::uint32_t>(1 + rank + 4099 * round + 77777 * index) * 2654435761U;
  return static_cast<std::int64_t>(mixed >> 8) - (1 << 22);
}

struct Seen {
  std::int64_t before, total, next_before, next_total, largest_before, largest;
  std::int32_t below;
  bool any, none;
};

/// Twice in a row and without a barrier between, so that what one scan works with must be free for the next.
template <typename Team>
void scans(const char* name, words::Place grid, int rounds) {
  const int size = Team::kWide ? static_cast<int>(grid.x) * Team::kBlock : Team::kBlock;
  const int teams = static_cast<int>(Team::kWide ? grid.y : grid.x);
  std::vector<Seen> seen(static_cast<std::size_t>(size) * teams * rounds);
  launch<Team>(grid, [&](const Team& team) {
    for (int round = 0; round < rounds; ++round) {
      Seen& mine = seen[(static_cast<std::size_t>(team.index()) * rounds + round) * size + team.rank()];
      const std::int64_t value = value_of(team.index(), team.rank(), round);
      mine.before = team.template scan<Add>(value, std::int64_t{0}, mine.total);
      mine.next_before = team.template scan<Add>(2 * value, std::int64_t{0}, mine.next_total);
      mine.largest_before = team.template scan<Larger>(value, std::int64_t{-1}, mine.largest);
      mine.below = team.below(static_cast<std::int32_t>(value), 4);
      mine.any = team.any(team.rank() == round * 37 % size);
      mine.none = !team.any(false);
    }
  });
  for (int index = 0; index < teams; ++index)
    for (int round = 0; round < rounds; ++round) {
      const Seen* const of = &seen[(static_cast<std::size_t>(index) * rounds + round) * size];
      std::int64_t sum = 0;
      std::int64_t largest = -1;
      for (int rank = 0; rank < size; ++rank) {
        const int other = rank % 16 + 4 < 16 ? rank + 4 : rank;
        if (of[rank].before != sum || of[rank].next_before != 2 * sum || of[rank].largest_before != largest)
          std::printf("%s: scan of thread %d in round %d\n", name, rank, round);
        if (of[rank].below != static_cast<std::int32_t>(value_of(index, other, round)))
          std::printf("%s: below of thread %d in round %d\n", name, rank, round);
        if (!of[rank].any || !of[rank].none) std::printf("%s: any of thread %d in round %d\n", name, rank, round);
        sum += value_of(index, rank, round);
        largest = larger(largest, value_of(index, rank, round));
      }
      for (int rank = 0; rank < size; ++rank)
        if (of[rank].total != sum || of[rank].next_total != 2 * sum || of[rank].largest != largest)
          std::printf("%s: total of thread %d in round %d\n", name, rank, round);
    }
}

/// Nobody passes a team's barrier before all of it have come, many times over; teams do not wait for each other.
void barriers(words::Place grid, int rounds) {
  const int size = static_cast<int>(grid.x) * Wide::kBlock;
  const int threads = size * static_cast<int>(grid.y);
  std::vector<int> at(static_cast<std::size_t>(threads), 0);
  std::vector<char> early(static_cast<std::size_t>(threads), 0);
  launch<Wide>(grid, [&](const Wide& team) {
    const int first = team.index() * size;
    for (int round = 1; round <= rounds * (1 + team.index()); ++round) {
      at[first + team.rank()] = round;
      team.barrier();
      for (int other = team.rank() % 61; other < size; other += 61)
        early[first + team.rank()] |= at[first + other] != round;
      team.barrier();
    }
  });
  for (int rank = 0; rank < threads; ++rank)
    if (early[rank] != 0)
      std::printf("%u teams of %u blocks: thread %d passed a barrier too early\n", grid.y, grid.x, rank);
}

}  // namespace

int main() {
  scans<BlockTeam<32>>("block of 32", {2, 1}, 3);
  scans<BlockTeam<64>>("block of 64", {2, 1}, 3);
  scans<BlockTeam<512>>("block of 512", {2, 1}, 3);
  for (const words::Place grid : {words::Place{3, 1}, {1, 3}, {4, 1}, {2, 3}}) {  // one after the other on one front
    scans<Wide>("wide", grid, 3);
    barriers(grid, 30);
  }
  scans<WideTeam<32>>("more blocks than a block has threads", {35, 1}, 2);
  std::puts("done");
  return 0;
}
