// A wide-area network between network namespaces: every host's eth0 is a tun device of this process, which holds
// packets back for half a round trip, loses some, and sends at a rate. The kernel of many machines has no netem.
//
//   wan RATE_MBIT RTT_MS LOSS BUFFER_MS NAMESPACE=ADDRESS... [-=ADDRESS]
//
// "-" is this machine, whose device is named by the environment variable WAN_GATEWAY; what it sends and receives is
// neither shaped nor lost. Prints "up" when all devices are there. A line "down ADDRESS" or "up ADDRESS" on stdin pulls
// or puts back a host's cable. Ends with stdin.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

using Seconds = double;

constexpr int kMtu = 1500;
constexpr int kLinkHeader = 14;  // Ethernet's, so that a rate means here what it means to tc
constexpr int kAtOnce = 64;      // packets of one host, then the next one's

Seconds now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Packet {
  Seconds at;  ///< when it has left the stage that it is in
  std::size_t to;
  std::vector<unsigned char> bytes;
};

struct Host {
  int device = -1;
  std::uint32_t address = 0;
  bool shaped = true;
  bool plugged = true;
  Seconds up_free = 0, down_free = 0;  ///< when its link can send, and receive, the next packet
  std::deque<Packet> leaving;          ///< on the link to the network
  std::deque<Packet> arriving;         ///< on the way to this host
};

struct Network {
  double bytes_per_s;
  Seconds one_way;
  double loss;
  Seconds buffer;
  std::vector<Host> hosts;
  std::mt19937_64 random{7};

  double draw() { return std::uniform_real_distribution<double>(0, 1)(random); }

  std::size_t host_of(std::uint32_t address) const {
    const auto found =
        std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.address == address; });
    return static_cast<std::size_t>(found - hosts.begin());
  }

  /// A packet that `from` sends now.
  void enter(std::size_t from, const unsigned char* bytes, int count, Seconds time) {
    if (count < 20 || bytes[0] >> 4 != 4) return;
    std::uint32_t address = 0;
    std::memcpy(&address, bytes + 16, sizeof address);
    const std::size_t to = host_of(address);
    Host& sender = hosts[from];
    if (to == hosts.size() || !sender.plugged || !hosts[to].plugged) return;
    Packet packet{time, to, {bytes, bytes + count}};
    if (!sender.shaped || !hosts[to].shaped) {
      hosts[to].arriving.push_back(std::move(packet));
      return;
    }
    if (draw() < loss) return;
    sender.up_free = std::max(sender.up_free, time);
    if (sender.up_free - time > buffer) return;  // no room
    sender.up_free += (count + kLinkHeader) / bytes_per_s;
    packet.at = sender.up_free;
    sender.leaving.push_back(std::move(packet));
  }

  /// Moves on what has left a link, and hands over what has arrived.
  void advance(Seconds time) {
    for (Host& host : hosts) {
      while (!host.leaving.empty() && host.leaving.front().at <= time) {
        Packet packet = std::move(host.leaving.front());
        host.leaving.pop_front();
        Host& to = hosts[packet.to];
        to.down_free = std::max(to.down_free, packet.at);
        if (to.down_free - packet.at > buffer) continue;
        to.down_free += static_cast<double>(packet.bytes.size() + kLinkHeader) / bytes_per_s;
        packet.at = to.down_free + one_way;
        to.arriving.push_back(std::move(packet));
      }
    }
    for (Host& host : hosts) {
      while (!host.arriving.empty() && host.arriving.front().at <= time) {
        const Packet& packet = host.arriving.front();
        if (host.plugged && write(host.device, packet.bytes.data(), packet.bytes.size()) < 0) {
          // The host's own queue is full: lost, as on any network.
        }
        host.arriving.pop_front();
      }
    }
  }

  /// When something is to be moved next; none: a second from `time`.
  Seconds next(Seconds time) const {
    Seconds soonest = time + 1;
    for (const Host& host : hosts) {
      if (!host.leaving.empty()) soonest = std::min(soonest, host.leaving.front().at);
      if (!host.arriving.empty()) soonest = std::min(soonest, host.arriving.front().at);
    }
    return soonest;
  }
};

[[noreturn]] void give_up(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

int open_tun(const char* name) {
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) give_up("/dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(device, TUNSETIFF, &request) != 0) give_up(name);
  return device;
}

Host make_host(const std::string& where) {
  const std::size_t middle = where.find('=');
  const std::string space = where.substr(0, middle);
  Host host;
  if (inet_pton(AF_INET, where.c_str() + middle + 1, &host.address) != 1) give_up(where);
  host.shaped = space != "-";
  if (!host.shaped) {
    const char* name = std::getenv("WAN_GATEWAY");
    host.device = open_tun(name != nullptr ? name : "wan");
    return host;
  }
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int other = open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || other < 0 || setns(other, CLONE_NEWNET) != 0) give_up(space);
  host.device = open_tun("eth0");
  if (setns(home, CLONE_NEWNET) != 0) give_up("home");
  close(home);
  close(other);
  return host;
}

/// Of stdin; false: it has ended.
bool obey(Network& network) {
  std::array<char, 256> line{};
  if (std::fgets(line.data(), line.size(), stdin) == nullptr) return false;
  std::array<char, 8> what{};
  std::array<char, 64> where{};
  if (std::sscanf(line.data(), "%7s %63s", what.data(), where.data()) != 2) return true;
  std::uint32_t address = 0;
  inet_pton(AF_INET, where.data(), &address);
  const std::size_t host = network.host_of(address);
  if (host < network.hosts.size()) network.hosts[host].plugged = std::strcmp(what.data(), "up") == 0;
  return true;
}

}  // namespace

int main(int count, char** words) {
  if (count < 6) {
    std::fputs("usage: wan RATE_MBIT RTT_MS LOSS BUFFER_MS NAMESPACE=ADDRESS...\n", stderr);
    return 2;
  }
  Network network{
      std::atof(words[1]) * 125'000, std::atof(words[2]) / 2'000, std::atof(words[3]), std::atof(words[4]) / 1'000, {}};
  for (int i = 5; i < count; ++i) network.hosts.push_back(make_host(words[i]));
  std::setvbuf(stdin, nullptr, _IONBF, 0);
  std::puts("up");
  std::fflush(stdout);

  std::vector<pollfd> watched{{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
  for (const Host& host : network.hosts) watched.push_back({.fd = host.device, .events = POLLIN, .revents = 0});
  std::array<unsigned char, kMtu + 4> bytes;
  for (;;) {
    const Seconds wait = std::max(0.0, network.next(now()) - now());
    const timespec limit{.tv_sec = static_cast<time_t>(wait),
                         .tv_nsec = static_cast<long>((wait - static_cast<double>(static_cast<time_t>(wait))) * 1e9)};
    ppoll(watched.data(), watched.size(), &limit, nullptr);
    if (watched[0].revents != 0 && !obey(network)) return 0;
    for (std::size_t i = 0; i < network.hosts.size(); ++i) {
      if ((watched[i + 1].revents & POLLIN) == 0) continue;
      for (int packets = 0; packets < kAtOnce; ++packets) {
        const ssize_t got = read(network.hosts[i].device, bytes.data(), bytes.size());
        if (got <= 0) break;
        network.enter(i, bytes.data(), static_cast<int>(got), now());
      }
    }
    network.advance(now());
  }
}
