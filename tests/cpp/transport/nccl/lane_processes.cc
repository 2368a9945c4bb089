// Ranks that are processes: all exchange with all, without end, until one goes while its device moves bodies. Each
// other one must be through within 10 s. Run as `test_transport_nccl_processes HOW`; HOW says how it goes:
//   kill   SIGKILL: the others hear of it beside the lane, as the host's transport would tell them
//   stop   SIGSTOP: only the watchdog of who has launched something with it notices; the rest hear of that one
// Exits with 0 if that is so.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "lane_rank.hpp"
#include "standin/nccl/standin_nccl.hpp"

namespace casync::nccl::test {
namespace {

constexpr Rank kSize = 4;
constexpr Rank kVictim = 2;
constexpr int kRounds = 20;

/// A socket between each two, which keeps messages apart.
class Sockets final : public Mail {
 public:
  Sockets(Rank rank, const std::vector<std::vector<int>>& ends) : ends_(ends[rank]) {}

  void post(Rank to, std::span<const std::byte> message) override {
    // A peer that is dead takes nothing.
    [[maybe_unused]] const auto sent = ::send(ends_[to], message.data(), message.size(), MSG_NOSIGNAL);
  }
  std::optional<std::pair<Rank, std::vector<std::byte>>> take() override {
    for (Rank peer = 0; peer < kSize; ++peer) {
      std::vector<std::byte> message(4096);
      const auto bytes = ends_[peer] < 0 ? -1 : recv(ends_[peer], message.data(), message.size(), MSG_DONTWAIT);
      if (bytes == 0) has_lost = true;
      if (bytes <= 0) continue;
      message.resize(static_cast<std::size_t>(bytes));
      return std::pair{peer, std::move(message)};
    }
    return std::nullopt;
  }

  bool has_lost = false;  // a peer

 private:
  std::vector<int> ends_;
};

int run(Rank rank, const std::vector<std::vector<int>>& ends, int signal) {
  for (Rank other = 0; other < kSize; ++other) {  // so that an end is closed when its process is no more
    for (Rank peer = 0; peer < kSize; ++peer) {
      if (other != rank && peer != other) close(ends[other][peer]);
    }
  }
  Sockets mail(rank, ends);
  LaneRank self(mail, {rank, kSize}, 3 * kSecond);
  self.open();
  if (!self.until_ready()) return 2;
  std::map<Rank, std::pair<std::unique_ptr<Buffer>, std::unique_ptr<Buffer>>> buffers;
  for (Rank peer = 0; peer < kSize; ++peer) {
    if (peer == rank) continue;
    buffers[peer] = {std::make_unique<Buffer>(self.device, 30'001, rank * 16 + peer),
                     std::make_unique<Buffer>(self.device, 30'001, 999)};
  }
  const auto is_over = [&] { return mail.has_lost || !self.lane->failure().empty(); };
  Nanoseconds begin = steady_now();
  for (int round = 1; !is_over(); ++round) {
    begin = steady_now();
    if (rank == kVictim && round == kRounds) standin_nccl_delay(300);
    self.told.sent.clear();
    self.told.bodies.clear();
    for (const auto& [peer, both] : buffers) {
      self.send(peer, *both.first, peer);
      self.accept(peer, *both.second, peer);
    }
    if (rank == kVictim && round == kRounds) {
      self.until([&] { return self.lane->moving(); });
      self.until([] { return false; }, kSecond / 10);
      raise(signal);
    }
    const bool ended = self.until(
        [&] { return is_over() || (self.told.sent.size() == kSize - 1 && self.told.bodies.size() == kSize - 1); });
    if (!ended) return 3;
    if (is_over()) break;
    for (const auto& [peer, both] : buffers) {
      if (!both.second->equals(peer * 16 + rank)) return 4;
    }
  }
  const std::string why = self.lane->failure().empty() ? "a peer is gone" : self.lane->failure();
  self.lane->close(kSecond);
  const double seconds = static_cast<double>(steady_now() - begin) / kSecond;
  std::printf("rank %u: through after %.1f s: %s\n", rank, seconds, why.c_str());
  return seconds < 10 ? 0 : 5;
}

}  // namespace
}  // namespace casync::nccl::test

int main(int count, char** arguments) {
  using namespace casync::nccl::test;
  const int signal = count == 2 && std::strcmp(arguments[1], "stop") == 0 ? SIGSTOP : SIGKILL;
  std::vector<std::vector<int>> ends(kSize, std::vector<int>(kSize, -1));
  for (casync::Rank one = 0; one < kSize; ++one) {
    for (casync::Rank other = 0; other < one; ++other) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) return 1;
      ends[one][other] = pair[0];
      ends[other][one] = pair[1];
    }
  }
  std::vector<pid_t> children;
  for (casync::Rank rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();  // before anything of CUDA
    if (child == 0) {
      const int status = run(rank, ends, signal);
      std::fflush(stdout);
      std::exit(status);
    }
    children.push_back(child);
  }
  for (const auto& row : ends) {
    for (const int end : row) {
      if (end >= 0) close(end);
    }
  }
  bool is_well = true;
  for (casync::Rank rank = 0; rank < kSize; ++rank) {
    if (rank == kVictim) continue;
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (status != 0) std::printf("rank %u ended with status %d\n", rank, status);
    is_well &= status == 0;
  }
  kill(children[kVictim], SIGKILL);
  waitpid(children[kVictim], nullptr, 0);
  return is_well ? 0 : 1;
}
