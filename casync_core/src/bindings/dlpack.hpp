#pragma once

#include <cstdint>

/// What is read here of DLPack's C exchange table (dmlc/dlpack, since version 1.2), by which a framework describes a
/// tensor in one call, without an object for each of its attributes.
namespace casync::dlpack {

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";  // of the tensor's type: a capsule
constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr std::uint32_t kMajorVersion = 1;
constexpr std::int32_t kCpu = 1;  // Device::kind: memory of the host

struct Device {
  std::int32_t kind;
  std::int32_t number;
  bool operator==(const Device&) const = default;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  bool operator==(const DataType&) const = default;
};

/// Borrowed from the tensor, until it is next used.
struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  const std::int64_t* shape;
  const std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

/// Lives as long as the process.
struct ExchangeTable {
  std::uint32_t major_version;
  std::uint32_t minor_version;
  ExchangeTable* of_older_version;
  void (*allocate)();
  void (*managed_from_object)();
  void (*object_from_managed)();
  int (*describe)(void* object, Tensor* described);  // 0, or -1 with a Python error; null: there is none
  void (*current_stream)();
};

}  // namespace casync::dlpack
