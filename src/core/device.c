/* device.c - listing devices, choosing one, and reading what the driver says about it. */
#include "core/core.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#ifndef CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV
#define CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV 0x4001
#endif
#ifndef CL_DEVICE_IL_VERSION
#define CL_DEVICE_IL_VERSION 0x105B
#endif
#ifndef CL_DEVICE_SUB_GROUP_SIZES_INTEL
#define CL_DEVICE_SUB_GROUP_SIZES_INTEL 0x4108
#endif

#ifndef CL_DEVICE_SPIRV_EXTENSIONS_KHR
#define CL_DEVICE_SPIRV_EXTENSIONS_KHR 0x12BA
#endif

#define AMD_MAX_WORK_GROUP 256

/* Of the device, or where that is NULL of the platform. */
static cl_int ask(cl_platform_id platform, cl_device_id device, cl_uint what, size_t size,
                  void *value, size_t *size_out)
{
    return device ? clGetDeviceInfo(device, what, size, value, size_out)
                  : clGetPlatformInfo(platform, what, size, value, size_out);
}

/* malloc'ed; "" where there is no answer, NULL without memory. */
static char *all_of(cl_platform_id platform, cl_device_id device, cl_uint what)
{
    size_t length = 0;
    if (ask(platform, device, what, 0, NULL, &length) != CL_SUCCESS)
        length = 0;
    char *text = calloc(length + 1, 1);
    if (text && length && ask(platform, device, what, length, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    return text;
}

/* What `out` holds of a text; frees it. */
static void keep_head(char *text, char *out, size_t size)
{
    llmk_join(out, size, text ? text : "", NULL);
    free(text);
}

static void read_string(cl_device_id device, cl_device_info what, char *out, size_t size)
{
    keep_head(all_of(NULL, device, what), out, size);
}

static void read_platform_name(cl_platform_id platform, char *out, size_t size)
{
    keep_head(all_of(platform, NULL, CL_PLATFORM_NAME), out, size);
}

static uint64_t read_u64(cl_device_id device, cl_device_info what)
{
    cl_ulong value = 0; /* zeroed, so that 4-byte answers read right on little-endian hosts */
    if (clGetDeviceInfo(device, what, sizeof value, &value, NULL) != CL_SUCCESS)
        return 0;
    return value;
}

static bool contains(const char *text, const char *part)
{
    const size_t n = strlen(part);
    for (; *text; text++)
        if (strncasecmp(text, part, n) == 0)
            return true;
    return n == 0;
}

static llmk_vendor vendor_of(const llmk_caps *caps, const char *vendor)
{
    /* The platform first: PoCL and Mesa drive other vendors' hardware with their own compilers. */
    if (contains(caps->platform_name, "Portable Computing Language"))
        return LLMK_VENDOR_POCL;
    if (contains(caps->platform_name, "rusticl") || contains(caps->platform_name, "Clover"))
        return LLMK_VENDOR_MESA;
    if (contains(caps->platform_name, "NVIDIA"))
        return LLMK_VENDOR_NVIDIA;
    if (contains(caps->platform_name, "AMD Accelerated"))
        return LLMK_VENDOR_AMD;
    if (contains(caps->platform_name, "Intel") && contains(vendor, "Intel"))
        return LLMK_VENDOR_INTEL;
    return LLMK_VENDOR_OTHER;
}

static uint32_t read_subgroup_sizes(const llmk_caps *caps)
{
    size_t sizes[32], bytes = 0;
    uint32_t all = 0;
    if (!llmk_caps_extension(caps, "cl_intel_required_subgroup_size") ||
        clGetDeviceInfo(caps->device, CL_DEVICE_SUB_GROUP_SIZES_INTEL, sizeof sizes, sizes,
                        &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof sizes[0]; i++)
        if ((sizes[i] & (sizes[i] - 1)) == 0) /* others are of no use */
            all |= (uint32_t)sizes[i];
    return all;
}

static bool has_feature(cl_device_id device, const char *name)
{
    cl_name_version features[64];
    size_t bytes = 0;
    if (clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_FEATURES, sizeof features, features, &bytes) !=
        CL_SUCCESS)
        return false;
    for (size_t i = 0; i < bytes / sizeof features[0]; i++)
        if (strncmp(features[i].name, name, sizeof features[i].name) == 0)
            return true;
    return false;
}

/* Of the list that cl_khr_spirv_queries brought. No list: no. */
static bool has_spirv_extension(const llmk_caps *caps, const char *name)
{
    size_t bytes = 0;
    bool found = false;
    if (!llmk_caps_extension(caps, "cl_khr_spirv_queries") ||
        clGetDeviceInfo(caps->device, CL_DEVICE_SPIRV_EXTENSIONS_KHR, 0, NULL, &bytes) !=
            CL_SUCCESS)
        return false;
    const char **names = calloc(1, bytes + 1);
    if (names && clGetDeviceInfo(caps->device, CL_DEVICE_SPIRV_EXTENSIONS_KHR, bytes, names,
                                 NULL) == CL_SUCCESS)
        for (size_t i = 0; i < bytes / sizeof *names && !found; i++)
            found = names[i] && strcmp(names[i], name) == 0;
    free(names);
    return found;
}

/* OpenCL C 1.2 everywhere, unless sub-groups are a feature of OpenCL C 3.0 and no extension. */
static const char *source_options_of(const llmk_caps *caps)
{
    return !llmk_caps_extension(caps, "cl_khr_subgroups") &&
                   has_feature(caps->device, "__opencl_c_subgroups")
               ? "-cl-std=CL3.0"
               : "-cl-std=CL1.2";
}

llmk_status llmk_caps_read(cl_device_id device, llmk_caps *caps)
{
    memset(caps, 0, sizeof *caps);
    caps->device = device;
    cl_int err =
        clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof caps->platform, &caps->platform, NULL);
    if (err != CL_SUCCESS)
        return llmk_fail_cl(NULL, err, "clGetDeviceInfo");
    read_platform_name(caps->platform, caps->platform_name, sizeof caps->platform_name);
    char vendor[128];
    read_string(device, CL_DEVICE_VENDOR, vendor, sizeof vendor);
    read_string(device, CL_DEVICE_NAME, caps->device_name, sizeof caps->device_name);
    read_string(device, CL_DRIVER_VERSION, caps->driver, sizeof caps->driver);
    read_string(device, CL_DEVICE_VERSION, caps->version, sizeof caps->version);
    read_string(device, CL_DEVICE_IL_VERSION, caps->il_version, sizeof caps->il_version);
    caps->vendor = vendor_of(caps, vendor);
    caps->type = read_u64(device, CL_DEVICE_TYPE);
    caps->compute_units = (uint32_t)read_u64(device, CL_DEVICE_MAX_COMPUTE_UNITS);
    caps->clock_mhz = (uint32_t)read_u64(device, CL_DEVICE_MAX_CLOCK_FREQUENCY);
    size_t group = 0;
    clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    caps->max_work_group = caps->max_required_group = (uint32_t)group;
    /* AMD's compilers build kernels that require no size for work-groups of up to 256. */
    if (caps->vendor == LLMK_VENDOR_AMD && !llmk_is_cpu(caps) && group > AMD_MAX_WORK_GROUP)
        caps->max_work_group = AMD_MAX_WORK_GROUP;
    caps->global_bytes = read_u64(device, CL_DEVICE_GLOBAL_MEM_SIZE);
    caps->max_alloc_bytes = read_u64(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    caps->local_bytes = read_u64(device, CL_DEVICE_LOCAL_MEM_SIZE);
    caps->cache_bytes = read_u64(device, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
    if (caps->type == 0 || caps->compute_units == 0 || caps->max_work_group == 0 ||
        caps->max_alloc_bytes == 0) /* they divide and bound: no kernel can be launched without */
        return llmk_fail(LLMK_OPENCL_ERROR,
                         "the driver of %s does not answer what a device must (type, compute "
                         "units, work-group size or largest allocation)",
                         caps->device_name);
    caps->base_align = (uint32_t)read_u64(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8; /* bits */
    /* ROCm can return success and an empty program from clCreateProgramWithIL: only the version
     * string tells. */
    caps->spirv = strstr(caps->il_version, "SPIR-V") != NULL;
    if (caps->vendor == LLMK_VENDOR_NVIDIA)
        caps->compute_capability =
            (uint32_t)(10 * read_u64(device, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV) +
                       read_u64(device, CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV));
    caps->extensions = all_of(NULL, device, CL_DEVICE_EXTENSIONS);
    if (!caps->extensions)
        return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for the extension string");
    caps->subgroup_sizes = read_subgroup_sizes(caps);
    caps->source_options = source_options_of(caps);
    /* Intel's compiler for CPUs ends the process where B is not in its own layout. */
    caps->cooperative_matrix = caps->spirv &&
                               has_spirv_extension(caps, "SPV_KHR_cooperative_matrix") &&
                               !(caps->vendor == LLMK_VENDOR_INTEL && llmk_is_cpu(caps));
    snprintf(caps->identity, sizeof caps->identity, "%s|%s|%s|%u", caps->platform_name,
             caps->device_name, caps->driver, llmk_version());
    return LLMK_OK;
}

void llmk_caps_release(llmk_caps *caps)
{
    free(caps->extensions);
    caps->extensions = NULL;
}

bool llmk_caps_extension(const llmk_caps *caps, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = caps->extensions; (p = strstr(p, name)) != NULL; p += n)
        if ((p == caps->extensions || p[-1] == ' ') && (p[n] == '\0' || p[n] == ' '))
            return true;
    return false;
}

void llmk_caps_fill_info(const llmk_caps *caps, llmk_device_info *info)
{
    memset(info, 0, sizeof *info);
    info->platform_id = caps->platform;
    info->device_id = caps->device;
    memcpy(info->platform, caps->platform_name, sizeof info->platform);
    memcpy(info->name, caps->device_name, sizeof info->name);
    memcpy(info->driver, caps->driver, sizeof info->driver);
    memcpy(info->version, caps->version, sizeof info->version);
    memcpy(info->il_version, caps->il_version, sizeof info->il_version);
    info->vendor = caps->vendor;
    info->type = caps->type;
    info->compute_units = caps->compute_units;
    info->clock_mhz = caps->clock_mhz;
    info->global_bytes = caps->global_bytes;
    info->max_alloc_bytes = caps->max_alloc_bytes;
    info->local_bytes = caps->local_bytes;
    info->cache_bytes = caps->cache_bytes;
    info->max_work_group = caps->max_work_group;
    info->compute_capability = caps->compute_capability;
    info->spirv = caps->spirv;
}

/* ---- Listing ---- */

typedef struct device_set {
    cl_device_id *ids;
    size_t count;
    char idle[128]; /* the name of a platform that has none; "": there is no such */
} device_set;

static llmk_status find_devices(device_set *set)
{
    *set = (device_set){0};
    cl_uint platform_count = 0;
    if (clGetPlatformIDs(0, NULL, &platform_count) != CL_SUCCESS || platform_count == 0)
        return LLMK_OK; /* no ICD at all gives an error code; it means no platform */
    cl_platform_id platforms[64];
    if (platform_count > LLMK_COUNT(platforms))
        platform_count = LLMK_COUNT(platforms);
    cl_int err = clGetPlatformIDs(platform_count, platforms, NULL);
    if (err != CL_SUCCESS)
        return llmk_fail_cl(NULL, err, "clGetPlatformIDs");
    for (cl_uint i = 0; i < platform_count; i++) {
        cl_uint n = 0;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 0, NULL, &n) != CL_SUCCESS || n == 0) {
            read_platform_name(platforms[i], set->idle, sizeof set->idle);
            continue;
        }
        cl_device_id *grown = realloc(set->ids, (set->count + n) * sizeof *grown);
        if (!grown) {
            free(set->ids);
            *set = (device_set){0};
            return llmk_fail(LLMK_OUT_OF_MEMORY, "out of memory for a list of devices");
        }
        set->ids = grown;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, n, set->ids + set->count, NULL) ==
            CL_SUCCESS)
            set->count += n;
    }
    return LLMK_OK;
}

/* A device whose driver does not answer is none: neither listed nor counted. `*unread` gets the
 * status of the last such. */
static bool can_read(cl_device_id device, const llmk_log *log, llmk_caps *caps, llmk_status *unread)
{
    const llmk_status status = llmk_caps_read(device, caps);
    if (status == LLMK_OK)
        return true;
    llmk_caps_release(caps);
    *unread = status;
    llmk_log_write(log, LLMK_LOG_WARN, "a device is left out: %s", llmk_error_message());
    return false;
}

llmk_status llmk_device_list(llmk_device_info *devices, size_t capacity, size_t *count)
{
    size_t entry;
    LLMK_TRY(llmk_check_infos("llmk_device_list", "devices", devices, capacity, count,
                              sizeof *devices, &entry));
    llmk_log log;
    LLMK_TRY(llmk_log_init(&log, &(llmk_context_options){0}));
    device_set set;
    LLMK_TRY(find_devices(&set));
    size_t found = 0;
    llmk_status unread = LLMK_OK;
    for (size_t i = 0; i < set.count && unread != LLMK_OUT_OF_MEMORY; i++) {
        llmk_caps caps;
        if (!can_read(set.ids[i], &log, &caps, &unread))
            continue;
        if (found < capacity) {
            llmk_device_info info;
            llmk_caps_fill_info(&caps, &info);
            llmk_fill_info((unsigned char *)devices + found * entry, entry, &info, sizeof info);
        }
        llmk_caps_release(&caps);
        found++;
    }
    free(set.ids);
    if (unread == LLMK_OUT_OF_MEMORY || (unread != LLMK_OK && found == 0))
        return unread; /* and its sentence */
    *count = found;
    return LLMK_OK;
}

/* ---- Choosing ---- */

static bool matches(const llmk_caps *caps, size_t index, const char *wanted)
{
    char *end = NULL;
    const unsigned long number = strtoul(wanted, &end, 10);
    if (wanted[0] != '\0' && *end == '\0')
        return number == index;
    if (strcasecmp(wanted, "gpu") == 0)
        return (caps->type & CL_DEVICE_TYPE_GPU) != 0;
    if (strcasecmp(wanted, "cpu") == 0)
        return llmk_is_cpu(caps);
    char both[260];
    snprintf(both, sizeof both, "%s / %s", caps->platform_name, caps->device_name);
    return contains(both, wanted);
}

/* GPU before accelerator before CPU; then the larger. PoCL's GPU back ends come after native ones.
 */
static double rank_of(const llmk_caps *caps)
{
    const double type = caps->type & CL_DEVICE_TYPE_GPU           ? 4e12
                        : caps->type & CL_DEVICE_TYPE_ACCELERATOR ? 2e12
                                                                  : 1e12;
    const double native = caps->vendor == LLMK_VENDOR_POCL ? 0 : 5e11;
    return type + native + (double)caps->compute_units * caps->clock_mhz;
}

/* " " and "/" would be a part of every name. */
static bool has_letter_or_digit(const char *text)
{
    while (*text && !isalnum((unsigned char)*text))
        text++;
    return *text != '\0';
}

llmk_status llmk_device_choose(const llmk_log *log, cl_device_id *device)
{
    const char *wanted = getenv("LLMK_DEVICE");
    if (wanted && wanted[0] == '\0')
        wanted = NULL;
    if (wanted && !has_letter_or_digit(wanted))
        return llmk_fail(LLMK_INVALID_ARGUMENT,
                         "LLMK_DEVICE is \"%s\"; expected an index, \"gpu\", \"cpu\" or a part of "
                         "\"PLATFORM / DEVICE\" with a letter or a digit",
                         wanted);
    device_set set;
    LLMK_TRY(find_devices(&set));
    if (set.count == 0) {
        free(set.ids);
        return set.idle[0]
                   ? llmk_fail(LLMK_NO_DEVICE,
                               "no OpenCL device found: the driver \"%s\" is there and has none "
                               "(PoCL, where it cannot write to ~/.cache or POCL_CACHE_DIR)",
                               set.idle)
                   : llmk_fail(LLMK_NO_DEVICE,
                               "no OpenCL device found: install an OpenCL driver (on Debian and "
                               "Ubuntu, pocl-opencl-icd runs on any CPU)");
    }
    double best = -1;
    size_t found = 0; /* as llmk_device_list counts */
    llmk_status unread = LLMK_OK;
    for (size_t i = 0; i < set.count; i++) {
        llmk_caps caps;
        if (!can_read(set.ids[i], log, &caps, &unread))
            continue;
        if ((!wanted || matches(&caps, found, wanted)) && rank_of(&caps) > best) {
            best = rank_of(&caps);
            *device = set.ids[i];
        }
        llmk_caps_release(&caps);
        found++;
    }
    free(set.ids);
    if (best < 0 && unread != LLMK_OK)
        return unread; /* and its sentence */
    if (best < 0)
        return llmk_fail(
            LLMK_NO_DEVICE,
            "LLMK_DEVICE is \"%s\", which names none of the %zu devices here; expected "
            "an index, \"gpu\", \"cpu\" or a part of \"PLATFORM / DEVICE\"",
            wanted ? wanted : "", found);
    return LLMK_OK;
}
