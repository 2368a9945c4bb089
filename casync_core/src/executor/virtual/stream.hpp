#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/virtual/workers.hpp"

namespace casync {

/// The stream of a device in virtual time: a processor that works in order. Its memory is the host's; but residuals are
/// elsewhere as long as they are far, and what it does not carry, uncompressed gradients, is fetched to another place.
class VirtualStream final : public Stream {
 public:
  VirtualStream(Agenda& agenda, VirtualWorkers::Options options, std::function<void()> news);

  void run(std::vector<std::unique_ptr<Job>> batch) override { processor_.run(std::move(batch)); }
  bool supports(const TaskGraph& graph, const Signature& signature, bool by_lane) const override;
  Allocator& shared() override { return host_memory(); }
  Allocator& own() override { return host_memory(); }
  std::unique_ptr<FarFloats> send(std::span<const float> values, bool must) override;
  std::vector<std::byte> look(const void* data, std::size_t bytes) override;
  void fetch(Operation& operation) override;
  void restore(Operation& operation) override;
  const std::string& failure() const override { return well_; }

  void collect(Workers::Finished& finished) { processor_.collect(finished); }

 private:
  struct Fetched {
    std::vector<std::byte> input;
    std::vector<std::byte> output;
    void* result;  ///< of the program
  };

  const std::string well_;
  VirtualWorkers processor_;
  std::map<const Operation*, Fetched> fetched_;
  std::vector<Fetched> interrupted_;  // transfers may still touch them
};

}  // namespace casync
