#include "executor/measure/timeline.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr std::size_t kBufferBytes = 64 << 10;
constexpr Nanoseconds kWriteInterval = 100'000'000;
constexpr std::uint32_t kLanesOfAKind = 1000;
constexpr std::array<const char*, 3> kLaneNames{"compute", "send", "receive"};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string microseconds(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", static_cast<double>(time) * 1e-3);
  return text;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

}  // namespace

Timeline::Timeline(const std::string& path, const Operations& operations, const Memory& memory, int rank,
                   bool mark_cycles, Clock clock)
    : operations_(operations),
      memory_(memory),
      rank_(rank),
      mark_cycles_(mark_cycles),
      clock_(std::move(clock)),
      start_(clock_()),
      file_(path, std::ios::binary | std::ios::trunc) {
  using std::chrono::duration_cast;
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto epoch = duration_cast<std::chrono::microseconds>(since_epoch).count();
  put(detail::concat(R"({"name":"start_time_since_epoch_in_micros","ph":"M","pid":)", rank_,
                     R"(,"args":{"start_time_since_epoch_in_micros":)", epoch, "}}"));
  put(detail::concat(R"({"name":"process_name","ph":"M","pid":)", rank_, R"(,"args":{"name":"rank )", rank_, "\"}}"));
  write();
  if (!file_) throw InvalidArgument(detail::concat("timeline ", path, " cannot be written"));
}

Timeline::~Timeline() { write(); }

void Timeline::on_event(const Event& event, Nanoseconds /*now*/) {
  std::visit(Overloads{[this](const event::Submit& submit) { submitted_[submit.handle] = clock_(); },
                       [this](const event::Ran& ran) { end({ran.instance, ran.task}); },
                       [this](const event::Sent& sent) { end({sent.instance, sent.task}); },
                       [this](const event::Received& received) { end({received.instance, received.task}); },
                       [](const auto& /*other*/) {}},
             event);
}

void Timeline::on_action(const Action& action) {
  std::visit(Overloads{[this](const action::Begin& begin) { on(begin); },
                       [this](const action::Run& run) {
                         for (const auto& [instance, task] : run.batch) start({instance, task}, compute);
                       },
                       [this](const action::Send& sending) { start({sending.instance, sending.task}, send); },
                       [this](const action::Accept& accept) { start({accept.instance, accept.task}, receive); },
                       [this](const action::Finish& finish) { on(finish); },  //
                       [](const auto& /*other*/) {}},
             action);
}

void Timeline::on_decide(Nanoseconds /*now*/) {
  if (mark_cycles_) {
    put(detail::concat(R"({"name":"CYCLE_START","ph":"i","s":"p","pid":)", rank_, R"(,"tid":0,"ts":)",
                       microseconds(clock_() - start_), "}"));
  }
  if (waiting_.size() > kBufferBytes || (!waiting_.empty() && clock_() - written_ > kWriteInterval)) write();
}

// ---------------------------------------------------------------------------------------------------------------------
// What becomes an event

void Timeline::on(const action::Begin& action) {
  const Operation& operation = operations_.at(action.handle);
  const auto submitted = submitted_.find(action.handle);
  // What was submitted before the trace began has no negotiation in it.
  if (submitted != submitted_.end()) {
    const std::string kind = upper(name_of(operation.definition->signature.kind));
    phase("NEGOTIATE_" + kind, thread_of(operation.definition->name), submitted->second, "");
    submitted_.erase(submitted);
  }
  runs_[action.instance] = {&operation, action.graph, action.plan.topology, action.plan.predicted_s, clock_(), 0};
}

void Timeline::on(const action::Finish& action) {
  submitted_.erase(action.handle);
  const auto at = runs_.find(action.instance);
  if (at == runs_.end()) return;
  const Run run = at->second;
  runs_.erase(at);
  for (auto work = works_.lower_bound({action.instance, 0});
       work != works_.end() && work->first.first == action.instance;) {
    busy_[work->second.lane][work->second.index] = false;  // it was under way when the operation failed
    work = works_.erase(work);
  }
  const Signature& signature = run.operation->definition->signature;
  std::string arguments =
      detail::concat("\"raw_bytes\":", raw_bytes_of(*run.operation), ",\"wire_bytes\":", run.sent_bytes,
                     ",\"codec\":", quoted(run.graph->codec->info().spec));
  if (signature.kind == OpKind::allreduce) {
    arguments += detail::concat(",\"topology\":", quoted(run.topology),
                                ",\"predicted_us\":", microseconds(static_cast<Nanoseconds>(run.predicted_s * 1e9)));
  }
  if (action.failure != nullptr) arguments += detail::concat(",\"error\":", quoted(action.failure->text));
  phase(upper(name_of(signature.kind)), thread_of(run.operation->definition->name), run.begun, arguments);
  if (runs_.empty()) write();  // it may be long until the next turn
}

void Timeline::start(TaskName name_of_task, Lane lane) {
  const auto at = runs_.find(name_of_task.first);
  if (at == runs_.end()) return;
  Run& run = at->second;
  const Task& task = run.graph->workflow.tasks[name_of_task.second];
  std::vector<bool>& lanes = busy_[lane];
  const auto index = static_cast<std::size_t>(std::find(lanes.begin(), lanes.end(), false) - lanes.begin());
  if (index == lanes.size()) {
    lanes.push_back(false);
    name_thread(thread_of(lane, index), detail::concat(kLaneNames[lane], ' ', index));
  }
  lanes[index] = true;
  std::string arguments;
  std::string name = detail::concat(name_of(task.primitive), ' ', run.operation->definition->name);
  if (run.graph->workflow.partitions.size() > 1) name += detail::concat('[', task.partition, ']');
  if (lane == send) {
    run.sent_bytes += bytes_of_message(*run.graph, memory_, name_of_task.first, task).wire;
    arguments = message_of(run, name_of_task);
    name += detail::concat(" to rank ", task.peer);
  } else if (lane == receive) {
    name += detail::concat(" from rank ", task.peer);
  }
  works_[name_of_task] = {lane, index, clock_(), std::move(name), std::move(arguments)};
}

void Timeline::end(TaskName task) {
  const auto at = works_.find(task);
  if (at == works_.end()) return;
  Work work = std::move(at->second);
  works_.erase(at);
  busy_[work.lane][work.index] = false;
  if (work.lane == receive) work.arguments = message_of(runs_.at(task.first), task);
  phase(work.name, thread_of(work.lane, work.index), work.begun, work.arguments);
}

std::string Timeline::message_of(const Run& run, TaskName task) const {
  const MessageBytes bytes = bytes_of_message(*run.graph, memory_, task.first, run.graph->workflow.tasks[task.second]);
  return detail::concat("\"codec\":", quoted(run.graph->codec->info().spec), ",\"raw_bytes\":", bytes.raw,
                        ",\"wire_bytes\":", bytes.wire);
}

// ---------------------------------------------------------------------------------------------------------------------
// The file

/// Lanes come before tensors, which are as many as there are.
std::uint32_t Timeline::thread_of(Lane lane, std::size_t index) const {
  return 1 + lane * kLanesOfAKind + static_cast<std::uint32_t>(std::min<std::size_t>(index, kLanesOfAKind - 1));
}

std::uint32_t Timeline::thread_of(const std::string& tensor) {
  const auto [at, is_new] =
      threads_.try_emplace(tensor, 1 + 3 * kLanesOfAKind + static_cast<std::uint32_t>(threads_.size()));
  if (is_new) name_thread(at->second, tensor);
  return at->second;
}

void Timeline::name_thread(std::uint32_t thread, const std::string& name) {
  put(detail::concat(R"({"name":"thread_name","ph":"M","pid":)", rank_, R"(,"tid":)", thread, R"(,"args":{"name":)",
                     quoted(name), "}}"));
}

void Timeline::phase(const std::string& name, std::uint32_t thread, Nanoseconds from, const std::string& arguments) {
  put(detail::concat(R"({"name":)", quoted(name), R"(,"ph":"X","pid":)", rank_, R"(,"tid":)", thread, R"(,"ts":)",
                     microseconds(from - start_), R"(,"dur":)", microseconds(clock_() - from),
                     arguments.empty() ? "" : ",\"args\":{", arguments, arguments.empty() ? "}" : "}}"));
}

void Timeline::put(const std::string& event) {
  waiting_ += std::exchange(empty_, false) ? "[\n" : ",\n";
  waiting_ += event;
}

/// The bracket that closes the array is written over by the next events.
void Timeline::write() {
  written_ = clock_();
  if (waiting_.empty()) return;
  file_.seekp(end_);
  end_ += static_cast<std::streamoff>(waiting_.size());
  waiting_ += "\n]\n";
  file_ << waiting_;
  file_.flush();
  waiting_.clear();
}

}  // namespace casync
