#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "casync/session.hpp"
#include "transport/local/local_transport.hpp"

namespace casync {

using Wrap = std::function<std::shared_ptr<Transport>(std::shared_ptr<Transport>)>;

/// Runs `body` once per rank, each on a thread with a Session over a local world; rethrows the first failure. All ranks
/// share the default options, changed by `change`, and send and receive through what `wrap` makes of their transport.
/// `log` is called by all of them, at the same time.
inline void spawn(
    int size, const std::function<void(Session&)>& body,
    const std::function<void(int rank, SessionOptions&)>& change = {}, const Wrap& wrap = {},
    const Log& log = [](const LogRecord&) {}) {
  transport::LocalWorld world(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        SessionOptions options;
        options.timeout_s = 30;
        options.host_of.assign(static_cast<std::size_t>(size), 0);
        for (int m = 0; m < size; ++m) options.host_of[static_cast<std::size_t>(m)] = static_cast<std::uint32_t>(m);
        if (change) change(rank, options);
        std::shared_ptr<Transport> transport = world.connect(rank);
        if (wrap) transport = wrap(std::move(transport));
        Session session(std::move(transport), options, log);
        body(session);
        session.shutdown();
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Submits and waits.
inline void run(Session& session, std::uint32_t registration, const void* input, void* output, std::int64_t rows = 0) {
  const auto handle = session.submit(registration, input, output, rows, false);
  while (!session.wait(handle, 1'000'000'000)) {
  }
  session.collect(handle);
}

}  // namespace casync
