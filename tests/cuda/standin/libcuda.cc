// A stand-in for libcuda: the functions of the driver that CaSync calls, on threads and memory of the host, with
// scripted delays and faults (standin.hpp). What the real driver leaves undefined, or would crash on, returns an error
// here.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.hpp"
#include "memory.hpp"
#include "modules.hpp"
#include "standin.hpp"
#include "streams.hpp"

namespace standin {
namespace {

using casync::cuda::Context;
using casync::cuda::DeviceNumber;
using casync::cuda::DevicePointer;
using casync::cuda::HostFunction;
using casync::cuda::IpcHandle;
using casync::cuda::Result;
using EventPointer = casync::cuda::EventHandle;
using ModulePointer = casync::cuda::ModuleHandle;
using FunctionPointer = casync::cuda::Function;
using StreamPointer = casync::cuda::Stream;

constexpr Result kInvalidValue = 1;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidImage = 200;
constexpr Result kUncorrectable = 214;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotFound = 500;
constexpr Result kTooLarge = 720;

constexpr int kDevices = 2;
constexpr int kProcessors = 3;
constexpr unsigned kBlocks = 12;  // that run at a time

/// What tests have said.
struct Script {
  std::mutex mutex;
  std::map<std::string, std::pair<int, Result>> failures;  // calls that are left until it fails, and how
  int ordered = 0;
  int drop = 0;
  std::atomic<int> to_host_ms{0};
  std::atomic<int> to_device_ms{0};
  std::atomic<int> between_ms{0};
  std::atomic<int> kernel_ms{0};
  std::atomic<bool> is_lost{false};
  std::atomic<int> losses{0};
  std::atomic<int> launches{0};
  std::atomic<int> copies_between{0};
  std::atomic<int> copies{0};
};
Script& script() {
  static auto& made = *new Script;
  return made;
}

/// What `name` is to return at once.
Result told(const char* name) {
  Script& said = script();
  if (said.is_lost) return kUncorrectable;
  const std::lock_guard lock(said.mutex);
  const auto at = said.failures.find(name);
  if (at == said.failures.end() || --at->second.first > 0) return casync::cuda::kSuccess;
  const Result result = at->second.second;
  said.failures.erase(at);
  return result;
}

struct Objects {
  std::mutex mutex;
  std::map<StreamPointer, std::shared_ptr<Stream>> streams;
  std::map<EventPointer, std::shared_ptr<Event>> events;
  std::map<ModulePointer, std::shared_ptr<modules::Module>> modules;
  std::map<FunctionPointer, std::shared_ptr<modules::Function>> functions;  // kept, as the driver keeps them
  std::map<void*, std::size_t> pinned;
  std::size_t pinned_bytes = 0;
  std::uintptr_t next = 0x1000;
  int retained[kDevices] = {};
};
Objects& objects() {
  static auto& made = *new Objects;
  return made;
}

thread_local std::vector<Context> contexts;
thread_local bool in_host_function = false;  // where the driver may not be called

void refuse_in_host_function(const char* name) {
  if (!in_host_function) return;
  std::fprintf(stderr, "stand-in for CUDA: %s was called by a function that cuLaunchHostFunc had queued\n", name);
  std::abort();
}

/// The devices that this process may use, by what CUDA_VISIBLE_DEVICES says of two (STANDIN_DEVICES: of so many).
const std::vector<int>& visible() {
  static const std::vector<int> found = [] {
    const char* const all = std::getenv("STANDIN_DEVICES");
    const int count = all == nullptr ? kDevices : std::atoi(all);
    const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    std::vector<int> devices;
    for (int device = 0; device < count; ++device) {
      if (chosen == nullptr || std::strchr(chosen, '0' + device) != nullptr) devices.push_back(device);
    }
    return devices;
  }();
  return found;
}

Context context_of(int device) { return reinterpret_cast<Context>(static_cast<std::uintptr_t>(device + 1)); }
int current_device() { return static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back())) - 1; }

/// Whether a wait or a record is to do nothing. Those of device 0 are counted.
bool is_dropped() {
  if (current_device() != 0) return false;
  Script& said = script();
  const std::lock_guard lock(said.mutex);
  ++said.ordered;
  return said.drop == said.ordered;
}

std::shared_ptr<Stream> stream_of(StreamPointer stream) {
  const std::lock_guard lock(objects().mutex);
  auto& streams = objects().streams;
  if (stream == nullptr && !streams.contains(nullptr)) streams[nullptr] = std::make_shared<Stream>();
  const auto at = streams.find(stream);
  return at == streams.end() ? nullptr : at->second;
}

std::shared_ptr<Event> event_of(EventPointer event) {
  const std::lock_guard lock(objects().mutex);
  const auto at = objects().events.find(event);
  return at == objects().events.end() ? nullptr : at->second;
}

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// Queues what a stream does, unless the device was lost by then.
void queue(Stream& stream, std::function<void()> job) {
  stream.queue([job = std::move(job), before = script().losses.load()] {
    if (script().losses == before) job();
  });
}

bool is_pinned(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(objects().mutex);
  auto at = objects().pinned.upper_bound(const_cast<void*>(memory));
  if (at == objects().pinned.begin()) return false;
  --at;
  return static_cast<const char*>(memory) + bytes <= static_cast<char*>(at->first) + at->second;
}

}  // namespace
}  // namespace standin

using namespace standin;

#define EXPORT extern "C" __attribute__((visibility("default")))
/// The begin of a function that a test may have fail, and that wants a context.
#define BEGIN(name)                                                  \
  refuse_in_host_function(#name);                                    \
  if (const Result result = told(#name); result != 0) return result; \
  if (contexts.empty()) return kInvalidContext

// --- the driver
// -------------------------------------------------------------------------------------------------------

EXPORT Result cuInit(unsigned) { return told("cuInit"); }

EXPORT Result cuDriverGetVersion(int* version) {
  const char* const wanted = std::getenv("STANDIN_VERSION");
  *version = wanted == nullptr ? 13'000 : std::atoi(wanted);
  return told("cuDriverGetVersion");
}

EXPORT Result cuGetErrorName(Result result, const char** name) {
  static const std::map<Result, const char*> names{{casync::cuda::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {casync::cuda::kNotReady, "CUDA_ERROR_NOT_READY"},
                                                   {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                   {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                   {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                   {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
                                                   {kNotFound, "CUDA_ERROR_NOT_FOUND"},
                                                   {kUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"},
                                                   {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                   {kTooLarge, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"}};
  const auto at = names.find(result);
  if (at == names.end()) return kInvalidValue;
  *name = at->second;
  return 0;
}
EXPORT Result cuGetErrorString(Result, const char** text) {
  *text = "says the stand-in";
  return 0;
}

EXPORT Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(visible().size());
  return told("cuDeviceGetCount");
}
EXPORT Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  if (const Result result = told("cuDeviceGet"); result != 0) return result;
  if (ordinal < 0 || ordinal >= static_cast<int>(visible().size())) return kInvalidDevice;
  *device = ordinal;
  return 0;
}
EXPORT Result cuDeviceGetName(char* name, int room, DeviceNumber) {
  std::strncpy(name, "stand-in", static_cast<std::size_t>(room));
  return 0;
}
EXPORT Result cuDeviceGetUuid_v2(casync::cuda::Uuid* uuid, DeviceNumber device) {
  *uuid = {};
  uuid->bytes[15] = static_cast<char>(visible().at(static_cast<std::size_t>(device)));
  return told("cuDeviceGetUuid_v2");
}
EXPORT Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceNumber) {
  *bytes = std::size_t{3} << 29;
  return 0;
}
EXPORT Result cuDeviceGetPCIBusId(char* address, int room, DeviceNumber device) {
  const int physical = visible().at(static_cast<std::size_t>(device));
  std::snprintf(address, static_cast<std::size_t>(room), "0000:0%d:00.0", physical + 1);
  return 0;
}
EXPORT Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  static const std::map<int, int> values{
      {casync::cuda::kMajor, 9}, {casync::cuda::kMinor, 0}, {casync::cuda::kProcessors, kProcessors}};
  const auto at = values.find(attribute);
  if (at == values.end()) return kInvalidValue;
  *value = at->second;
  return 0;
}
/// The first device reaches the second one's memory, and not the other way round.
EXPORT Result cuDeviceGetP2PAttribute(int* value, int attribute, DeviceNumber from, DeviceNumber to) {
  if (from == to) return kInvalidDevice;
  const bool reaches = from < to;
  if (attribute != casync::cuda::kAccessSupported && attribute != casync::cuda::kPerformanceRank) return kInvalidValue;
  *value = reaches ? 1 : 0;
  return 0;
}
EXPORT Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  if (const Result result = told("cuDevicePrimaryCtxRetain"); result != 0) return result;
  const std::lock_guard lock(objects().mutex);
  ++objects().retained[device];
  *context = context_of(device);
  return 0;
}
EXPORT Result cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  const std::lock_guard lock(objects().mutex);
  return --objects().retained[device] < 0 ? kInvalidContext : 0;
}

EXPORT Result cuCtxPushCurrent_v2(Context context) {
  contexts.push_back(context);
  return 0;
}
EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN(cuCtxGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return 0;
}

EXPORT Result cuStreamCreateWithPriority(StreamPointer* stream, unsigned, int) {
  BEGIN(cuStreamCreateWithPriority);
  auto made = std::make_shared<Stream>();
  const std::lock_guard lock(objects().mutex);
  *stream = reinterpret_cast<StreamPointer>(objects().next += 8);
  objects().streams[*stream] = std::move(made);
  return 0;
}
EXPORT Result cuStreamDestroy_v2(StreamPointer stream) {
  if (contexts.empty()) return kInvalidContext;
  std::shared_ptr<Stream> dying;  // until what is queued has run, for which the driver would not wait
  const std::lock_guard lock(objects().mutex);
  const auto at = objects().streams.find(stream);
  if (at == objects().streams.end()) return kInvalidHandle;
  dying = std::move(at->second);
  objects().streams.erase(at);
  return 0;
}
EXPORT Result cuStreamSynchronize(StreamPointer stream) {
  BEGIN(cuStreamSynchronize);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  of->synchronize();
  return script().is_lost ? kUncorrectable : 0;
}
EXPORT Result cuStreamQuery(StreamPointer stream) {
  BEGIN(cuStreamQuery);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  return of->is_idle() ? 0 : casync::cuda::kNotReady;
}
EXPORT Result cuStreamIsCapturing(StreamPointer stream, int* status) {
  BEGIN(cuStreamIsCapturing);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  *status = of->is_captured ? 1 : 0;
  return 0;
}
EXPORT Result cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int mine = 0;  // global: what the driver may not do during a capture is refused on every thread
  std::swap(mine, *mode);
  return 0;
}
EXPORT Result cuStreamWaitEvent(StreamPointer stream, EventPointer event, unsigned) {
  BEGIN(cuStreamWaitEvent);
  const auto of = stream_of(stream);
  const auto until = event_of(event);
  if (of == nullptr || until == nullptr) return kInvalidHandle;
  if (is_dropped()) return 0;
  const std::uint64_t point = until->recorded();
  of->queue([until, point] { until->wait(point); });
  return 0;
}

EXPORT Result cuEventCreate(EventPointer* event, unsigned) {
  BEGIN(cuEventCreate);
  const std::lock_guard lock(objects().mutex);
  *event = reinterpret_cast<EventPointer>(objects().next += 8);
  objects().events[*event] = std::make_shared<Event>();
  return 0;
}
EXPORT Result cuEventDestroy_v2(EventPointer event) {
  if (contexts.empty()) return kInvalidContext;
  const std::lock_guard lock(objects().mutex);
  return objects().events.erase(event) == 0 ? kInvalidHandle : 0;
}
EXPORT Result cuEventRecord(EventPointer event, StreamPointer stream) {
  BEGIN(cuEventRecord);
  const auto of = stream_of(stream);
  const auto recorded = event_of(event);
  if (of == nullptr || recorded == nullptr) return kInvalidHandle;
  if (is_dropped()) return 0;
  const std::uint64_t point = recorded->record();
  of->queue([recorded, point] { recorded->reach(point); });
  return 0;
}
EXPORT Result cuEventQuery(EventPointer event) {
  BEGIN(cuEventQuery);
  const auto of = event_of(event);
  if (of == nullptr) return kInvalidHandle;
  return of->is_over() ? 0 : casync::cuda::kNotReady;
}

EXPORT Result cuMemAlloc_v2(DevicePointer* address, std::size_t bytes) {
  BEGIN(cuMemAlloc_v2);
  if (bytes == 0) return kInvalidValue;
  *address = memory::allocate(bytes, current_device());
  return *address == 0 ? casync::cuda::kOutOfMemory : 0;
}
EXPORT Result cuMemFree_v2(DevicePointer address) {
  BEGIN(cuMemFree_v2);
  return memory::free(address) ? 0 : kInvalidValue;
}
EXPORT Result cuMemFreeAsync(DevicePointer address, StreamPointer stream) {
  BEGIN(cuMemFreeAsync);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  of->queue([address] { memory::free(address); });
  return 0;
}
EXPORT Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  BEGIN(cuMemHostAlloc);
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return casync::cuda::kOutOfMemory;
  std::memset(*memory, 0xEE, bytes);
  const std::lock_guard lock(objects().mutex);
  objects().pinned[*memory] = bytes;
  objects().pinned_bytes += bytes;
  return 0;
}
EXPORT Result cuMemFreeHost(void* memory) {
  if (contexts.empty()) return kInvalidContext;
  const std::lock_guard lock(objects().mutex);
  const auto at = objects().pinned.find(memory);
  if (at == objects().pinned.end()) return kInvalidValue;
  objects().pinned_bytes -= at->second;
  objects().pinned.erase(at);
  std::free(memory);
  return 0;
}

EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, StreamPointer stream) {
  BEGIN(cuMemcpyDtoHAsync_v2);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  if (!memory::holds(from, bytes) || !is_pinned(to, bytes)) return kInvalidValue;
  ++script().copies;
  queue(*of, [=] {
    sleep_ms(script().to_host_ms);
    std::memcpy(to, memory::bytes_of(from), bytes);
  });
  return 0;
}
EXPORT Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, StreamPointer stream) {
  BEGIN(cuMemcpyHtoDAsync_v2);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  if (!memory::holds(to, bytes) || !is_pinned(from, bytes)) return kInvalidValue;
  ++script().copies;
  queue(*of, [=] {
    sleep_ms(script().to_device_ms);
    std::memcpy(memory::bytes_of(to), from, bytes);
  });
  return 0;
}
EXPORT Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, StreamPointer stream) {
  BEGIN(cuMemcpyDtoDAsync_v2);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  if (!memory::holds(to, bytes) || !memory::holds(from, bytes)) return kInvalidValue;
  ++script().copies_between;
  queue(*of, [=] {
    sleep_ms(script().between_ms);
    std::memcpy(memory::bytes_of(to), memory::bytes_of(from), bytes);
  });
  return 0;
}

EXPORT Result cuIpcGetMemHandle(IpcHandle* handle, DevicePointer address) {
  BEGIN(cuIpcGetMemHandle);
  const memory::Shared what = memory::share(address);
  static_assert(sizeof what <= sizeof handle->bytes);
  if (what.bytes == 0) return kInvalidValue;
  std::memcpy(handle->bytes, &what, sizeof what);
  return 0;
}
EXPORT Result cuIpcOpenMemHandle_v2(DevicePointer* address, IpcHandle handle, unsigned) {
  BEGIN(cuIpcOpenMemHandle_v2);
  memory::Shared what;
  std::memcpy(&what, handle.bytes, sizeof what);
  *address = memory::open(what);
  return *address == 0 ? kInvalidValue : 0;
}
EXPORT Result cuIpcCloseMemHandle(DevicePointer) {
  BEGIN(cuIpcCloseMemHandle);
  return 0;
}
EXPORT Result cuLaunchHostFunc(StreamPointer stream, HostFunction function, void* argument) {
  BEGIN(cuLaunchHostFunc);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  queue(*of, [=] {
    in_host_function = true;
    function(argument);
    in_host_function = false;
  });
  return 0;
}

EXPORT Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, StreamPointer stream) {
  BEGIN(cuMemsetD8Async);
  const auto of = stream_of(stream);
  if (of == nullptr) return kInvalidHandle;
  if (!memory::holds(to, bytes)) return kInvalidValue;
  queue(*of, [=] { std::memset(memory::bytes_of(to), value, bytes); });
  return 0;
}

EXPORT Result cuModuleLoadData(ModulePointer* module, const void* image) {
  BEGIN(cuModuleLoadData);
  auto loaded = modules::load(static_cast<const char*>(image));
  if (loaded == nullptr) return kInvalidImage;
  const std::lock_guard lock(objects().mutex);
  *module = reinterpret_cast<ModulePointer>(objects().next += 8);
  objects().modules[*module] = std::move(loaded);
  return 0;
}
EXPORT Result cuModuleUnload(ModulePointer module) {
  if (contexts.empty()) return kInvalidContext;
  const std::lock_guard lock(objects().mutex);
  return objects().modules.erase(module) == 0 ? kInvalidHandle : 0;
}
EXPORT Result cuModuleGetFunction(FunctionPointer* function, ModulePointer module, const char* name) {
  BEGIN(cuModuleGetFunction);
  const std::lock_guard lock(objects().mutex);
  const auto at = objects().modules.find(module);
  if (at == objects().modules.end()) return kInvalidHandle;
  auto found = modules::find(at->second, name);
  if (found == nullptr) return kNotFound;
  *function = reinterpret_cast<FunctionPointer>(objects().next += 8);
  objects().functions[*function] = std::move(found);
  return 0;
}
EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, FunctionPointer, int, std::size_t) {
  BEGIN(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = kBlocks / kProcessors;
  return 0;
}

namespace {

Result start(FunctionPointer function, unsigned blocks, unsigned teams, unsigned threads, bool cooperative,
             StreamPointer stream, void** arguments) {
  const auto of = stream_of(stream);
  std::shared_ptr<modules::Function> found;
  {
    const std::lock_guard lock(objects().mutex);
    const auto at = objects().functions.find(function);
    if (at != objects().functions.end()) found = at->second;
  }
  if (of == nullptr || found == nullptr) return kInvalidHandle;
  auto job = modules::bind(found, static_cast<int>(blocks), static_cast<int>(teams), static_cast<int>(threads),
                           cooperative, arguments);
  if (!job) return kInvalidValue;
  if (cooperative && blocks * teams > kBlocks) return kTooLarge;
  ++script().launches;
  queue(*of, [job = std::move(job)] {
    sleep_ms(script().kernel_ms);
    job();
  });
  return 0;
}

}  // namespace

EXPORT Result cuLaunchKernel(FunctionPointer function, unsigned blocks, unsigned teams, unsigned, unsigned threads,
                             unsigned, unsigned, unsigned, StreamPointer stream, void** arguments, void**) {
  BEGIN(cuLaunchKernel);
  return start(function, blocks, teams, threads, false, stream, arguments);
}
EXPORT Result cuLaunchCooperativeKernel(FunctionPointer function, unsigned blocks, unsigned teams, unsigned,
                                        unsigned threads, unsigned, unsigned, unsigned, StreamPointer stream,
                                        void** arguments) {
  BEGIN(cuLaunchCooperativeKernel);
  return start(function, blocks, teams, threads, true, stream, arguments);
}

// --- for tests
// --------------------------------------------------------------------------------------------------------

EXPORT int64_t standin_distance(void) { return memory::distance(); }
EXPORT int standin_holds(uint64_t address, size_t bytes) { return memory::holds(address, bytes) ? 1 : 0; }

EXPORT void standin_launch(void* stream, void (*body)(void*), void* argument, int milliseconds) {
  stream_of(static_cast<StreamPointer>(stream))->queue([=] {
    sleep_ms(milliseconds);
    body(argument);
  });
}

EXPORT int standin_copies_between() { return script().copies_between; }
EXPORT void standin_delay_copies_between(int milliseconds) { script().between_ms = milliseconds; }
EXPORT void standin_delay_copies(int to_host_milliseconds, int to_device_milliseconds) {
  script().to_host_ms = to_host_milliseconds;
  script().to_device_ms = to_device_milliseconds;
}

EXPORT void standin_fail(const char* name, int n, int result) {
  const std::lock_guard lock(script().mutex);
  script().failures.erase(name);
  if (n > 0) script().failures[name] = {n, result};
}

EXPORT int standin_ordered(void) {
  const std::lock_guard lock(script().mutex);
  return script().ordered;
}
EXPORT void standin_drop(int n) {
  const std::lock_guard lock(script().mutex);
  script().ordered = 0;
  script().drop = n;
}

EXPORT void standin_delay_kernels(int milliseconds) { script().kernel_ms = milliseconds; }

EXPORT int standin_launches(void) { return script().launches; }
EXPORT int standin_copies(void) { return script().copies; }

EXPORT void standin_capture(void* stream, int is_captured) {
  stream_of(static_cast<StreamPointer>(stream))->is_captured = is_captured != 0;
}

EXPORT void standin_lose_device(int is_lost) {
  if (is_lost != 0) ++script().losses;
  script().is_lost = is_lost != 0;
}

EXPORT size_t standin_device_bytes(void) { return memory::in_use(); }
EXPORT size_t standin_pinned_bytes(void) {
  const std::lock_guard lock(objects().mutex);
  return objects().pinned_bytes;
}
