#include "transport/tcp/readiness.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>

#include "casync/error.hpp"
#include "transport/tcp/socket.hpp"

namespace casync::transport::tcp {
namespace {

constexpr std::uint64_t kBellTag = std::numeric_limits<std::uint64_t>::max();
constexpr int kAtOnce = 64;

void control(int epoll, int operation, int descriptor, const Ready& what) {
  epoll_event event{};
  event.events = (what.to_read ? EPOLLIN : 0U) | (what.to_write ? EPOLLOUT : 0U);
  event.data.u64 = what.tag;
  if (epoll_ctl(epoll, operation, descriptor, &event) != 0) throw Error("epoll_ctl: " + error_text(errno));
}

}  // namespace

Readiness::Readiness(DoorbellCell& bell) : cell_(bell), bell_(bell) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_ < 0 || event_ < 0) {
    const int error = errno;
    this->~Readiness();
    throw Error("no descriptors to sleep on: " + error_text(error));
  }
  add(event_, {.tag = kBellTag, .to_read = true});
}

Readiness::~Readiness() {
  for (const int descriptor : {epoll_, event_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void Readiness::add(int descriptor, const Ready& what) { control(epoll_, EPOLL_CTL_ADD, descriptor, what); }
void Readiness::change(int descriptor, const Ready& what) { control(epoll_, EPOLL_CTL_MOD, descriptor, what); }
void Readiness::remove(int descriptor) { control(epoll_, EPOLL_CTL_DEL, descriptor, {}); }

std::span<Ready> Readiness::now() {
  std::array<epoll_event, kAtOnce> events;
  const int count = epoll_wait(epoll_, events.data(), kAtOnce, 0);
  ready_.clear();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kBellTag) continue;  // for who sleeps
    ready_.push_back({.tag = event.data.u64,
                      .to_read = (event.events & EPOLLIN) != 0,
                      .to_write = (event.events & EPOLLOUT) != 0,
                      .lost = (event.events & (EPOLLHUP | EPOLLERR)) != 0});
  }
  return ready_;
}

void Readiness::sleep(Nanoseconds timeout) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  bell_.wait_by([&] {
    if (timeout <= 0) return;
    pollfd set{.fd = epoll_, .events = POLLIN, .revents = 0};
    const timespec relative{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
    ppoll(&set, 1, &relative, nullptr);  // epoll_wait itself counts in milliseconds
  });
  std::uint64_t rings = 0;
  while (read(event_, &rings, sizeof rings) < 0 && errno == EINTR) {
  }
}

void Readiness::ring() {
  if (!count_ring(cell_)) return;
  const std::uint64_t one = 1;
  while (write(event_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace casync::transport::tcp
