#include "executor/virtual/workers.hpp"

#include <algorithm>
#include <iterator>

namespace casync {

VirtualWorkers::VirtualWorkers(Agenda& agenda, Options options, std::function<void()> news)
    : agenda_(agenda),
      options_(std::move(options)),
      news_(std::move(news)),
      free_at_(options_.in_order ? 1 : static_cast<std::size_t>(std::max(1, options_.threads)), 0) {}

void VirtualWorkers::run(std::vector<std::unique_ptr<Job>> jobs) {
  if (free_batches_.empty()) {
    free_batches_.push_back(batches_.size());
    batches_.emplace_back();
  }
  const std::uint64_t index = free_batches_.back();
  free_batches_.pop_back();
  batches_[index].jobs = std::move(jobs);
  batches_[index].errors.clear();
  Nanoseconds cost = 0;
  for (const auto& job : batches_[index].jobs) {
    const double seconds = static_cast<double>(job->weight) * options_.seconds_per_byte;
    cost += options_.cost ? options_.cost(*job) : options_.per_job + static_cast<Nanoseconds>(seconds * 1e9);
  }
  Nanoseconds& free_at = *std::min_element(free_at_.begin(), free_at_.end());
  const Nanoseconds begin = std::max(agenda_.now(), free_at);
  free_at = begin + cost;
  if (options_.early && agenda_.random() % 2 == 0) agenda_.at(begin, *this, kBegin, index);
  agenda_.at(free_at + 1, *this, kEnd, index);
  if (options_.in_order) free_at += 2;
}

void VirtualWorkers::collect(Finished& finished) {
  std::ranges::move(finished_, std::back_inserter(finished));
  finished_.clear();
}

void VirtualWorkers::happen(std::uint32_t what, std::uint64_t value) {
  Batch& batch = batches_[value];
  if (batch.errors.empty()) run_all(batch.jobs, batch.errors);
  if (what == kBegin) return;
  for (std::size_t i = 0; i < batch.jobs.size(); ++i)
    finished_.emplace_back(std::move(batch.jobs[i]), std::move(batch.errors[i]));
  batch.jobs.clear();
  free_batches_.push_back(value);
  news_();
}

}  // namespace casync
