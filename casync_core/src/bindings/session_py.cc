#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <set>

#include "bindings/bindings.hpp"
#include "bindings/bound_session.hpp"
#include "bindings/completions_py.hpp"
#include "bindings/errors_py.hpp"
#include "bindings/fast_method.hpp"
#include "bindings/plan_py.hpp"
#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "casync/route.hpp"

namespace py = pybind11;

namespace casync {
namespace {

std::shared_ptr<Transport> transport_of(const py::object& capsule) {
  if (capsule.is_none()) return nullptr;
  const auto typed = py::cast<py::capsule>(capsule);
  return *static_cast<std::shared_ptr<Transport>*>(typed.get_pointer());
}

py::array_t<float> to_array(std::span<const float> values) {
  return py::array_t<float>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::dict to_dict(const CodecState& state) {
  using namespace py::literals;
  py::dict arrays;
  for (std::size_t i = 0; i < state.arrays.size(); ++i) {
    const StateArray& array = state.arrays[i];
    arrays[py::str(array.name)] = py::dict("values"_a = to_array(state.values[i]), "per_element"_a = array.per_element,
                                           "shared"_a = array.shared, "pending"_a = array.pending);
  }
  return py::dict("codec"_a = state.codec, "agreed"_a = state.agreed, "steps"_a = state.steps, "arrays"_a = arrays);
}

CodecState state_of(const py::dict& dict) {
  CodecState state;
  state.codec = dict["codec"].cast<std::string>();
  state.agreed = dict["agreed"].cast<bool>();
  state.steps = dict["steps"].cast<std::uint32_t>();
  for (const auto& [name, item] : dict["arrays"].cast<py::dict>()) {
    const auto array = item.cast<py::dict>();
    using Values = py::array_t<float, py::array::c_style | py::array::forcecast>;
    const auto values = array["values"].cast<Values>();
    state.values.emplace_back(values.data(), values.data() + values.size());
    state.arrays.push_back({name.cast<std::string>(), values.size(), array["per_element"].cast<bool>(),
                            array["shared"].cast<bool>(), array["pending"].cast<bool>()});
  }
  return state;
}

std::vector<std::pair<std::string, GradientPlan>> plans_of(const py::object& by_name) {
  std::vector<std::pair<std::string, GradientPlan>> plans;
  for (const auto& [name, plan] : by_name.cast<std::map<std::string, py::dict>>()) {
    plans.emplace_back(name, plan_of(name, plan));
  }
  return plans;
}

SessionOptions options_of(const py::dict& dict) {
  current_isa();  // a wrong CASYNC_ISA is refused here, and not in the first operation that encodes
  SessionOptions options;
  std::set<std::string> known;
  const auto has = [&](const char* key) {
    known.insert(key);
    return dict.contains(key);
  };
  const auto take = [&](const char* key, auto& field) {
    if (has(key)) field = dict[key].cast<std::decay_t<decltype(field)>>();
  };
  take("session_tag", options.session_tag);
  take("number", options.number);
  take("host_of", options.host_of);
  take("world", options.world);
  take("worker_threads", options.worker_threads);
  take("pool_bytes", options.pool_bytes);
  take("coordinator", options.coordinator.policy);
  take("coordinator_batch_bytes", options.coordinator.batch_bytes);
  if (has("coordinator_timeout_s")) {
    options.coordinator.timeout = static_cast<Nanoseconds>(dict["coordinator_timeout_s"].cast<double>() * 1e9);
  }
  take("min_numel", options.min_numel);
  take("partition_bytes", options.partition_bytes);
  take("re_plan", options.re_plan);
  take("seed", options.seed);
  take("deterministic", options.deterministic);
  if (has("log_level")) options.log_level = static_cast<LogLevel>(dict["log_level"].cast<int>());
  take("stall_warning_s", options.stall_warning_s);
  take("timeout_s", options.timeout_s);
  take("peer_timeout_s", options.peer_timeout_s);
  take("event_log", options.event_log);
  take("device_lane", options.device_lane);
  take("nccl_library", options.nccl_library);
  if (has("fixed_plans")) options.fixed_plans = plans_of(dict["fixed_plans"]);
  options.around_turn = [](const std::function<void()>& work) {
    if (PyGILState_Check() == 0) return work();  // it was submitted from C
    const py::gil_scoped_release release;
    work();
  };
  for (const auto& [key, value] : dict) {
    const auto name = key.cast<std::string>();
    if (!known.contains(name)) throw InvalidArgument(detail::concat("the core has no option ", name));
  }
  return options;
}

/// Gives up the GIL until the operation is done, or for as long as Ctrl-C may be left waiting.
void wait_a_while(BoundSession& session, Session::Handle handle) {
  bool done = false;
  {
    const py::gil_scoped_release release;
    done = session.wait(handle, kSignalInterval);
  }
  session.log().catch_up();
  if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void wait_until_done(BoundSession& session, Session::Handle handle) {
  while (!session.done(handle)) wait_a_while(session, handle);
}

/// A device that fails here is told to whoever makes progress, for whom it is waited.
void order_after(BoundSession& session, Session::Handle handle, std::uintptr_t stream) {
  const py::gil_scoped_release release;
  session.order_after(handle, reinterpret_cast<void*>(stream));
}

/// Waits for all before it throws the first failure, so that no handle is left behind.
void synchronize_all(BoundSession& session, const std::vector<Session::Handle>& handles,
                     std::optional<std::uintptr_t> stream) {
  for (const Session::Handle handle : handles) wait_until_done(session, handle);
  if (stream) {
    for (const Session::Handle handle : handles) order_after(session, handle, *stream);
  }
  std::exception_ptr first;
  for (const Session::Handle handle : handles) {
    try {
      session.collect(handle);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

py::object submit(BoundSession& session, Arguments given) {
  const auto registration = argument<std::uint32_t>(given, 0);
  const auto* const input = reinterpret_cast<const void*>(argument<std::uintptr_t>(given, 1));
  auto* const output = reinterpret_cast<void*>(argument<std::uintptr_t>(given, 2));
  const auto rows = argument<std::int64_t>(given, 3);
  const auto wake = argument<bool>(given, 4);
  auto splits = given.size() > 5 ? argument<std::vector<std::int64_t>>(given, 5) : std::vector<std::int64_t>();
  if (given.size() == 8) throw py::type_error("submit() takes a device and a stream, not 8 arguments");
  DeviceStream where;
  if (given.size() == 9) {
    where = {argument<int>(given, 7), reinterpret_cast<void*>(argument<std::uintptr_t>(given, 8))};
  }
  if (given.size() < 7 || given[6] == Py_None) {
    return py::int_(session.submit(registration, input, output, rows, wake, std::move(splits), where));
  }
  if (py::isinstance<CompletionGroup>(given[6])) {
    argument<CompletionGroup&>(given, 6).add([&](Completion completion) {
      session.submit(registration, input, output, completion, rows, wake, std::move(splits), where);
    });
    return py::none();
  }
  if (PyCallable_Check(given[6]) == 0) throw py::type_error("a completion is callable");
  auto call = std::make_unique<CompletionCall>(argument<py::object>(given, 6));
  const Completion completion = [call = call.get(), to = &session.dispatcher()](Outcome&& outcome) {
    call->ended(std::move(outcome));
    to->hand_over(std::unique_ptr<CompletionCall>(call));
  };
  session.submit(registration, input, output, completion, rows, wake, std::move(splits), where);
  [[maybe_unused]] const auto* const given_away = call.release();
  return py::none();
}

py::bool_ use(BoundSession& session, Arguments given) {
  return py::bool_(session.use(argument<std::uint32_t>(given, 0)));
}

py::none synchronize(BoundSession& session, Arguments given) {
  const auto handle = argument<Session::Handle>(given, 0);
  if (given.size() == 2) {
    wait_until_done(session, handle);
    order_after(session, handle, argument<std::uintptr_t>(given, 1));
  }
  while (!session.collect(handle)) wait_a_while(session, handle);
  return py::none();
}

}  // namespace

void bind_session(py::module_& module) {
  using namespace py::literals;
  py::class_<BoundSession> bound(module, "Session", py::is_final());
  def_fast<&submit, 5, 9>(bound, "submit", "Submits memory; returns the handle, or None with a completion.");
  def_fast<&use, 1, 1>(bound, "use", "Whether this registration is known still; then it was used just now.");
  def_fast<&synchronize, 1, 2>(bound, "synchronize", "Waits for an operation and forgets it.");
  bound
      .def(py::init([](const py::object& transport, const py::dict& options, const py::function& log) {
             auto dispatcher = std::make_shared<Dispatcher>();
             auto to = std::make_shared<PythonLog>(log, dispatcher);
             return std::make_unique<BoundSession>(transport_of(transport), options_of(options), dispatcher, to);
           }),
           "transport"_a, "options"_a, "log"_a)
      .def_property_readonly("rank", &Session::rank)
      .def_property_readonly("size", &Session::size)
      .def(
          "define",
          [](BoundSession& session, const std::string& name, int kind, int dtype, int op, std::int64_t rows,
             std::int64_t cols, int root, float prescale, float postscale, std::string dims, std::string compression,
             std::string topology, const std::string& site, bool on_device, std::int32_t priority) {
            Signature signature;
            signature.kind = static_cast<OpKind>(kind);
            signature.dtype = static_cast<DType>(dtype);
            signature.op = static_cast<ReduceOp>(op);
            signature.shape = {rows, cols};
            signature.root = root;
            signature.prescale = prescale;
            signature.postscale = postscale;
            signature.dims = std::move(dims);
            signature.compression = std::move(compression);
            signature.topology = std::move(topology);
            signature.memory = on_device ? MemoryKind::device : MemoryKind::host;
            signature.priority = priority;
            return session.define(name, signature, site);
          },
          "name"_a, "kind"_a, "dtype"_a, "op"_a, "rows"_a, "cols"_a, "root"_a = 0, "prescale"_a = 1.0F,
          "postscale"_a = 1.0F, "dims"_a = "", "compression"_a = "none", "topology"_a = "auto", "site"_a = "",
          "on_device"_a = false, "priority"_a = 0)
      .def("knows", &Session::knows, "registration"_a)
      .def("set_optimizer", &Session::set_optimizer, "registration"_a, "lr"_a, "momentum"_a = 0.0F,
           "nesterov"_a = false, "loss_scale"_a = 1.0F)
      .def(
          "add_device_code",
          [](BoundSession& session, int device, const py::bytes& common, const std::string& spec,
             const py::bytes& code) {
            const std::string of_all = common;
            const std::string of_codec = code;
            const py::gil_scoped_release release;
            session.add_device_code(device, of_all, spec, of_codec);
          },
          "device"_a, "common"_a, "spec"_a, "code"_a)
      .def("poll", &Session::poll, "handle"_a, py::call_guard<py::gil_scoped_release>())
      .def("synchronize_all", &synchronize_all, "handles"_a, "stream"_a = py::none())
      .def(
          "synchronize_gather",
          [](BoundSession& session, Session::Handle handle) {
            wait_until_done(session, handle);
            const Gathered gathered = session.take_result(handle);
            session.collect(handle);
            return to_python(gathered);
          },
          "handle"_a)
      .def("abort", &Session::abort, "why"_a)
      .def("close_in_child", &Session::close_in_child)
      .def("shutdown", &BoundSession::close, py::call_guard<py::gil_scoped_release>())
      .def("counters",
           [](BoundSession& session) {
             SessionCounters counters;
             {
               const py::gil_scoped_release release;
               counters = session.counters();
             }
             return py::dict(
                 "sent_bytes"_a = counters.transport.sent_bytes, "received_bytes"_a = counters.transport.received_bytes,
                 "sent_messages"_a = counters.transport.sent_messages,
                 "received_messages"_a = counters.transport.received_messages, "slot_bytes"_a = counters.slot_bytes,
                 "residual_bytes"_a = counters.residual_bytes, "pool_peak"_a = counters.pool_peak);
           })
      .def("metrics", [](const BoundSession& session) { return to_dict(session.metrics()); })
      .def("plan",
           [](BoundSession& session, std::uint32_t registration) -> py::object {
             std::unique_ptr<GradientPlan> plan;
             {
               const py::gil_scoped_release release;
               plan = session.plan(registration);
             }
             if (plan == nullptr) return py::none();
             return to_dict(*plan);
           })
      .def("plans",
           [](BoundSession& session) {
             std::vector<std::pair<std::string, GradientPlan>> plans;
             {
               const py::gil_scoped_release release;
               plans = session.plans();
             }
             py::dict by_name;
             for (const auto& [name, plan] : plans) by_name[py::str(name)] = to_dict(plan);
             return by_name;
           })
      .def("start_timeline", &Session::start_timeline, "path"_a, "mark_cycles"_a,
           py::call_guard<py::gil_scoped_release>())
      .def("stop_timeline", &Session::stop_timeline, py::call_guard<py::gil_scoped_release>())
      .def(
          "fix_plans",
          [](BoundSession& session, const py::dict& by_name) {
            const auto plans = plans_of(by_name);
            const py::gil_scoped_release release;
            session.fix_plans(plans);
          },
          "plans"_a)
      .def("residual_names", &Session::residual_names, py::call_guard<py::gil_scoped_release>())
      .def(
          "residual",
          [](BoundSession& session, const std::string& name) {
            FloatArray values;
            {
              const py::gil_scoped_release release;
              values = session.residual(name);
            }
            return to_array(values);
          },
          "name"_a)
      .def(
          "set_residual",
          [](BoundSession& session, const std::string& name,
             const py::array_t<float, py::array::c_style | py::array::forcecast>& values) {
            const std::span<const float> span(values.data(), static_cast<std::size_t>(values.size()));
            const py::gil_scoped_release release;
            session.set_residual(name, span);
          },
          "name"_a, "values"_a)
      .def("state_names", &Session::state_names, py::call_guard<py::gil_scoped_release>())
      .def(
          "state",
          [](BoundSession& session, const std::string& name) {
            CodecState state;
            {
              const py::gil_scoped_release release;
              state = session.state(name);
            }
            return to_dict(state);
          },
          "name"_a)
      .def(
          "set_state",
          [](BoundSession& session, const std::string& name, const py::dict& dict) {
            CodecState state = state_of(dict);
            const py::gil_scoped_release release;
            session.set_state(name, std::move(state));
          },
          "name"_a, "state"_a)
      .def("forget", &Session::forget, "name"_a, py::call_guard<py::gil_scoped_release>());
}

}  // namespace casync
