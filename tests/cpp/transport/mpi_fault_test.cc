#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>
#include <thread>

#include "conformance.hpp"
#include "transport/mpi/environment.hpp"
#include "transport/mpi/mpi_transport.hpp"

/// What survivors see when a rank dies. Run as `mpirun --with-ft ulfm -n N test_transport_mpi_fault HOW`; HOW says how
/// rank 1 goes:
///   kill    SIGKILL between messages: what it had said before is heard
///   kill-busy, kill-busy-far  SIGKILL while bodies flow in every direction; far: without shared memory
///   stop    SIGSTOP: nothing is noticed here, silence is the engine's to judge; close must end all the same
///   exit    exit without MPI_Finalize: noticed if the status is 0, not otherwise; close must end all the same
/// Every survivor prints what it saw; the exit status is 0 if that is as stated.
namespace casync::transport::test {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using mpi::Environment;

constexpr int kVictim = 1;
constexpr std::size_t kLastWords = 3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void die(std::string_view how) {
  if (how == "stop") {
    // Nobody will continue us: a child ends us when the survivors are through.
    if (const pid_t parent = getpid(); fork() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(8));
      kill(parent, SIGKILL);
      _exit(0);
    }
    raise(SIGSTOP);
  }
  if (how != "exit") raise(SIGKILL);
  _exit(0);
}

bool survive(Rank& self, std::string_view how) {
  const auto start = Clock::now();
  const auto noticed = [&] { return !self.told.downs.empty(); };
  const bool heard = self.until(noticed, (how == "stop" || how == "exit" ? 2 : 10) * kSecond);
  std::string seen = "nothing";
  for (const auto& [peer, why] : self.told.downs) seen = "rank " + std::to_string(peer) + " down: " + why;
  std::cout << "rank " << self.rank() << ": after " << seconds_since(start) << " s " << seen << std::endl;
  const auto count = std::count_if(self.told.downs.begin(), self.told.downs.end(),
                                   [](const auto& down) { return down.first == kVictim; });
  bool good = how.starts_with("kill") ? heard && count == 1 : count <= 1;
  if (how == "kill") good &= self.told.heads[kVictim].size() == kLastWords;

  // Sends to the dead are ignored; the living go on: an abort must reach everybody. Bodies too, but for those that were
  // under way when the connection broke: Open MPI may lose them, or those behind them, even between living ranks.
  const Bytes head(10), body(3'000'000, std::byte{7});
  self.transport->send_head(kVictim, Bytes(head));
  std::vector<casync::Rank> living = self.peers();
  std::erase(living, kVictim);
  for (const casync::Rank peer : living) self.transport->send_head(peer, Bytes(head));
  good &= self.until([&] {
    return std::all_of(living.begin(), living.end(), [&](casync::Rank peer) {
      const auto& got = self.told.heads[peer];
      return std::count(got.begin(), got.end(), head) == 1;
    });
  });
  if (!how.starts_with("kill-busy")) {
    std::vector<Bytes> in;
    for (const casync::Rank peer : living) self.transport->accept(peer, in.emplace_back(body.size()), 2);
    for (const casync::Rank peer : living) self.transport->send_body(peer, body, 2);
    good &=
        self.until([&] { return self.told.bodies.size() == living.size() && self.told.sent.size() == living.size(); });
  }
  const auto closing = Clock::now();
  self.transport->close(5'000'000'000);
  std::cout << "rank " << self.rank() << ": the living " << (good ? "went on" : "DID NOT GO ON") << ", close took "
            << seconds_since(closing) << " s" << std::endl;
  return good && seconds_since(closing) < 7;
}

bool run(std::string_view how) {
  Rank self(connect_mpi(1, {}, how != "kill-busy-far"));
  self.barrier();
  const Bytes out(20'000'000);
  std::vector<Bytes> in;
  const bool busy = how.starts_with("kill-busy");
  if (busy) {
    // Bodies to and from the victim never complete; those among the living do.
    for (const casync::Rank peer : self.peers()) {
      self.transport->accept(peer, in.emplace_back(out.size()), 1);
      self.transport->send_body(peer, out, 1);
    }
  }
  if (self.rank() == kVictim) {
    self.idle(busy ? kMillisecond : 50 * kMillisecond);
    for (std::size_t i = 0; how == "kill" && i < kLastWords; ++i) {
      for (const casync::Rank peer : self.peers()) self.transport->send_head(peer, Bytes(30'000));
    }
    die(how);
  }
  const bool good = survive(self, how);
  Environment::leave(false);
  return good;
}

}  // namespace
}  // namespace casync::transport::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const bool good = casync::transport::test::run(argv[1]);
  std::cout.flush();
  // No destructor of the MPI library after a fault.
  _exit(good ? 0 : 1);
}
